// Package balance decides which next hop of a multipath route a forwarded packet takes: a program at the interfaces'
// ingress decodes it from the packet's ports (Controllable per-Flow Load Balancing; G. Detal, "Evaluating and Improving the
// Deployability of Multipath TCP", 2014, section 5.4).
//
// The program sets the packet's hash. The kernel forwards as always, and takes the next hop from that hash, if
// net.ipv4.fib_multipath_hash_policy and net.ipv6.fib_multipath_hash_policy are 1. So firewall rules, neighbours, ICMP
// errors and counters are not affected. There is no state for flows.
//
// The kernel hashes by itself what the program leaves alone: packets without ports, fragments, IPv6 with extension
// headers, and routes that the program was not given.
//
// The program is attached by TCX, and on kernels before 6.6 by a filter of tc, which costs a packet more time. CAP_BPF and
// CAP_NET_ADMIN are enough. The choice ends with the process that has the Balancer open: the kernel detaches TCX's programs,
// and empties the map by which the filter reaches its program.
package balance

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type hops -type prefix4 -type prefix6 -type counts -tags linux balance balance.c -- -O2 -mcpu=v3 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
