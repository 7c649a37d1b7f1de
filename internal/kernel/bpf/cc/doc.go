// Package cc registers coupled congestion controls for MPTCP with the kernel, which has none of its own: LIA (RFC
// 6356), OLIA (Khalili et al. 2012), BALIA (draft-walid-mptcp-congestion-control) and wVegas (Cao et al. 2012). They
// are eBPF programs (struct_ops) that read the windows and round trips of all subflows of a connection. With one
// subflow, each behaves like Reno, and wVegas like Vegas.
//
// A registration ends with the process that made it. Connections that use the algorithm keep it. Choose sets congestion
// controls for connections by port, network and cgroup. Only internal/agent and the lab may import this package.
//
// # Where to find what
//
//	cc.go                             registering algorithms
//	choose.go choose.c                choosing the congestion control of connections
//	coupled.h lia.c olia.c balia.c    the algorithms that look at windows
//	wvegas.c wvegas.h                 the one that looks at delays
//	arithmetic.h                      their arithmetic
//	model.go model_state.go wvegas.go the same in Go, for reading and tests
package cc

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux lia lia.c -- -O2 -Wall -Werror -Wno-logical-op-parentheses -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux olia olia.c -- -O2 -Wall -Werror -Wno-logical-op-parentheses -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux balia balia.c -- -O2 -Wall -Werror -Wno-logical-op-parentheses -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux wvegas wvegas.c -- -O2 -Wall -Werror -Wno-logical-op-parentheses -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux arithmetic arithmetic.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux choose choose.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
