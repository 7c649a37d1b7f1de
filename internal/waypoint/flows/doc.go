// Package flows follows members' open connections: whose they are, how many bytes they carry, which of them are watched
// and which go on the fast path. Conntrack's events, what was seen of packets, and the time go in; lines for
// the log, and what is to be done with connections, come out. It does no I/O. Not for concurrent use.
//
// A connection goes on the fast path in two steps. It is watched first, until its sequence numbers are certain.
// Whoever knows its addresses and ports can send packets with numbers of his own, and eBPF cannot tell them from
// others. conntrack can, as it has followed the connection from its first SYN: while the connection is watched, it lets
// pass and counts only what fits. So the numbers are the connection's own if they were not begun anew while conntrack
// counted packets in both directions. Then it is forwarded, past netfilter.
package flows
