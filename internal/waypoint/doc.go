// Package waypoint is a member's waypoint role: it forwards other members' connections to servers,
// holds members to the egress policy and their quotas, and records who caused which traffic. Packets
// never pass through it: it writes the kernel's table, and the kernel forwards them, also while no
// agent runs. Only package agent may import it.
//
// There are three ways to a server. A mapping (Map) is a port of this host that leads to one server.
// An admission to in-band detours (InBand) lets SYNs from a member's address name theirs; where they
// are authenticated, eBPF marks the genuine ones before netfilter sees them. An admission of
// addresses in a tunnel (AdmitTunnel), whose ends are others' part, lets connections from there go to
// any server. What is granted lasts for a lease, sessions or not; but an in-band admission needs a
// session of its member from its address (sessions.go).
//
// The way of a request for a mapping, in the order of the files: Map (waypoint.go) hands it to the
// one goroutine that owns all state; grant.go decides with the index of live mappings (index.go) and
// the policy (egress); batch.go writes what concurrent requests decided as one transaction (rules)
// and answers them. The other ways are simpler: inband.go with passes.go, and tunnels.go. The kernel's
// table is the truth: it is read back at the start (reconcile.go), and whenever a transaction says
// that the index is out of step (writing.go). host.go follows the host's addresses and interfaces;
// flows.go the connections themselves, for the attribution log and the snapshot.
package waypoint
