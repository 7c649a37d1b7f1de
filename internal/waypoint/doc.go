// Package waypoint is a member's waypoint role: it forwards other members' connections to servers,
// enforces the egress policy and quotas, and records which member caused which connection. It does not
// handle packets itself: it writes the kernel's table, and the kernel forwards them, also while no agent
// runs.
//
// A member has three ways to a server. A mapping (Map) is a port of this host that leads to one server.
// An in-band admission (InBand) lets SYNs from a member's address name their server in a TCP option; if
// they are authenticated, eBPF marks the genuine ones before netfilter sees them. A tunnel admission
// (AdmitTunnel) lets connections from the addresses in a tunnel go to any server; package tunnel makes
// the tunnels. Each of them lasts for its lease. An in-band admission also ends with the member's last
// session from that address; the others need no session.
//
// Packages below it decide, without I/O: lease about requests and the ends of leases, flows about the
// connections on the fast path, egress about the servers that are allowed, and giving about the times
// when the waypoint is open. This package acts, in one goroutine that owns all state (loop.go). It acts on
//   - requests of members (requests.go),
//   - their sessions (sessions.go),
//   - conntrack's events (connections.go, fastpath.go),
//   - changes of the host (surroundings.go, filters.go),
//   - the time (loop.go: check).
//
// Decisions change the kernel's table (carryout.go, table.go). The table is the truth: it is read back
// at the start (adopt.go), and when a transaction fails because the leases differ from it.
package waypoint
