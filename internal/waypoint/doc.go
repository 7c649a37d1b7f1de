// Package waypoint is a member's waypoint role: it forwards other members' connections to servers,
// holds members to the egress policy and their quotas, and records who caused which traffic. Packets
// never pass through it: it writes the kernel's table, and the kernel forwards them, also while no
// agent runs.
//
// A member has three ways to a server. A mapping (Map) is a port of this host that leads to one server.
// An in-band admission (InBand) lets SYNs from a member's address name their server in a TCP option; if
// they are authenticated, eBPF marks the genuine ones before netfilter sees them. A tunnel admission
// (AdmitTunnel) lets connections from the addresses in a tunnel go to any server; package tunnel makes
// the tunnels. All of them last for a lease, also without a session, but an in-band admission needs a
// session of the member from that address.
//
// Packages below decide, without I/O: lease decides who holds what and until when, flows which
// connections use the fast path, egress which servers are allowed, giving when the waypoint is open.
// This package acts, in one goroutine that owns all state (loop.go). Five things lead to decisions:
//   - requests of members (requests.go),
//   - their sessions (sessions.go),
//   - conntrack's events (connections.go, fastpath.go),
//   - changes of the host (surroundings.go, filters.go),
//   - time.
//
// Decisions change the kernel's table (carryout.go, table.go). The table is the truth: it is read back
// at the start (adopt.go), and when a transaction fails because the leases differ from it.
package waypoint
