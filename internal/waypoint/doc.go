// Package waypoint is a member's waypoint role: it forwards other members' connections to servers,
// holds members to the egress policy and their quotas, and records who caused which traffic. Packets
// never pass through it: it writes the kernel's table, and the kernel forwards them, also while no
// agent runs.
//
// There are three ways to a server. A mapping (Map) is a port of this host that leads to one server.
// An admission to in-band detours (InBand) lets SYNs from a member's address name theirs; where they
// are authenticated, eBPF marks the genuine ones before netfilter sees them. An admission of
// addresses in a tunnel (AdmitTunnel), whose ends are others' part, lets connections from there go to
// any server. What is granted lasts for a lease, sessions or not; but an in-band admission needs a
// session of its member from its address.
//
// What is decided is pure and in packages below: lease decides who holds what until when, flows which
// connections go on the fast path, egress which servers may be called, giving when the waypoint gives.
// Here is the loop that acts. It is one goroutine, and owns all state (loop.go). Requests of members
// (requests.go), their sessions (sessions.go), conntrack's events (connections.go, fastpath.go), changes
// of the host (surroundings.go, filters.go) and the time lead to decisions, and these to changes of the
// kernel (carryout.go, table.go). The kernel's table is the truth: it is read back at the start
// (adopt.go), and whenever a transaction fails because the leases are out of step.
package waypoint
