// Package flows tracks members' open connections: their owners, their bytes, and which of them are watched or on the fast
// path. Its input is conntrack's events, observed sequence numbers, and the time. Its output is lines for the log, and
// actions for connections. It does no I/O, and is not safe for concurrent use.
//
// A connection gets onto the fast path in two steps. First it is watched, until its sequence numbers are certain. A
// stranger who knows its addresses and ports can send packets with wrong numbers, and eBPF cannot recognise them. conntrack
// can, because it has followed the connection from its first SYN: while the connection is watched, conntrack forwards and
// counts only packets that fit. So the observed numbers are right if they did not start again while conntrack counted
// packets in both directions. Then the connection is forwarded without netfilter.
package flows
