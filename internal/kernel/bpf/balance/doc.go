// Package balance chooses which next hop of a multipath route a forwarded packet takes. A program at the interfaces'
// ingress decodes the next hop from the packet's ports (Controllable per-Flow Load Balancing; G. Detal, "Evaluating and
// Improving the Deployability of Multipath TCP", 2014, section 5.4).
//
// The program only sets the packet's hash. The kernel forwards as always, and derives the next hop from that hash, if
// net.ipv4.fib_multipath_hash_policy and net.ipv6.fib_multipath_hash_policy are 1. So firewall rules, neighbours, ICMP
// errors and counters are not affected. There is no state for flows.
//
// The program leaves some packets alone, and the kernel computes their hashes: packets without ports, fragments, IPv6
// with extension headers, and packets on routes that the program does not have.
//
// The program is attached by TCX. On kernels before 6.6 it is a filter of tc, which costs more time per packet. CAP_BPF
// and CAP_NET_ADMIN are enough. The choice ends with the process that has the Balancer open: the kernel detaches TCX's
// programs, and empties the map through which the filter finds its program.
package balance

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type hops -type prefix4 -type prefix6 -type counts -tags linux balance balance.c -- -O2 -mcpu=v3 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
