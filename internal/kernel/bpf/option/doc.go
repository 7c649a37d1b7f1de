// Package option makes the kernel's TCP send and obey options by which two hosts ask each other for settings of a
// connection: a user timeout (RFC 5482), a congestion control, an initial window, a strategy of delayed ACKs, a rate of each subflow. Package
// tcpopt has their bytes and values. One eBPF program (sockops, on a cgroup) does all.
//
//  1. The client's SYN announces what it asks and what it grants (experiment id 0xdc10, ten bytes). Beside MP_JOIN there
//     is no room for it: options are exchanged on a connection's first subflow. A rate is asked of joined subflows, too, if the first one to the
//     same address has learned that the peer grants it.
//  2. If the server has something in common with that, its SYN+ACK answers in six bytes. Where a middlebox removes
//     either, or the server knows nothing of it, all ends here.
//  3. Requests travel in ACKs without data, one in each, twice because ACKs may be lost; the initial window only in the
//     third ACK (or the SYN+ACK, if there is room). RFC 5482's option needs no announcement.
//  4. The receiver grants within its bounds, by setting the socket's option, and reports what it did. Each option is obeyed once
//     for each connection, so repeating it is useless.
//  5. When nothing is left to send or to await, the program is called no more for this connection, nor after 64 packets.
//
// A listener is seen when it begins to listen: a server that listened before the program was attached answers no
// announcement. Only internal/agent and lab/bench may import this package.
package option

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux option option.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
