// Package option makes the kernel's TCP send and obey options by which two hosts ask each other for settings of a
// connection: a user timeout (RFC 5482), a congestion control, an initial window, a strategy of delayed ACKs, and a
// rate of each subflow. Package tcpopt defines their bytes and values. One eBPF program (sockops, on a cgroup) does all
// of this:
//
//  1. The client's first SYN announces what it asks and what it grants (experiment id 0xdc10, ten bytes). If that SYN is
//     lost, the next ones announce nothing, because a firewall may drop the option. If then the second one is answered,
//     nothing is announced to that network for a while (rest.h). A SYN with MP_JOIN has no room for the announcement, so
//     options are exchanged on a connection's first subflow. Joined subflows ask only for a rate, and only if the first
//     subflow to the same address has learned that the peer grants it.
//  2. The server's first SYN+ACK answers in six bytes if both have something in common. Otherwise, if a middlebox removes
//     either option, or if the SYN+ACK is sent again, the exchange ends here.
//  3. Requests travel in ACKs without data, one in each, twice because ACKs may be lost. The initial window is asked
//     for only in the third ACK, or in the SYN+ACK if there is room. RFC 5482's option needs no announcement.
//  4. The receiver grants within its bounds, by setting the socket's option, and reports what it did. It obeys each
//     option once for each connection, so repeating one is useless.
//  5. When nothing is left to send or to await, and after 64 packets at the latest, the kernel stops calling the
//     program for this connection.
//
// The program sees a listener only when it begins to listen. So a server that listened before the program was attached
// does not answer announcements. Only internal/agent and lab/bench may import this package.
package option

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux option option.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
