// Package cc registers coupled congestion controls with the kernel, which has none of its own: LIA (RFC 6356), OLIA
// (Khalili et al. 2012), BALIA (draft-walid-mptcp-congestion-control) and wVegas (Cao et al. 2012). They are eBPF programs
// (struct_ops) that read the windows and round trips of all subflows of a connection. With one subflow, each behaves as
// Reno, and wVegas as Vegas.
//
// A registration ends with the process that made it. Connections that use the algorithm keep it. Choose applies
// congestion controls to connections by port, network and cgroup. Only internal/agent and the lab may import this package.
package cc

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux lia lia.c -- -O2 -Wall -Werror -Wno-logical-op-parentheses -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux olia olia.c -- -O2 -Wall -Werror -Wno-logical-op-parentheses -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux balia balia.c -- -O2 -Wall -Werror -Wno-logical-op-parentheses -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux wvegas wvegas.c -- -O2 -Wall -Werror -Wno-logical-op-parentheses -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux arithmetic arithmetic.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux choose choose.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
