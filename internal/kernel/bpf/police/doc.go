// Package police limits the rate at which single TCP connections are received, without the sender's help. A program at
// tc's ingress sets CE (RFC 3168) in data above a token bucket, and the sender slows down as if it had met a full queue
// that drops nothing. If the sender does not do ECN, or stays above twice the rate for some seconds in spite of marks as
// BBR may, that data is dropped instead. Acknowledgements and other segments without data always pass.
//
// A connection does ECN if one end asks for it in its SYN, because of the sysctl net.ipv4.tcp_ecn or the route's
// "features ecn". Linux servers agree by default. The kernel's own police action is a module that many kernels lack.
//
// CAP_BPF and CAP_NET_ADMIN are enough. The bounds end with the process that has the Policer open.
package police

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type tuple -type bucket -tags linux police police.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
