// Package waypoint is a member's waypoint role: it grants other members ports of this host that lead
// to servers, writes them into the kernel, holds members to the egress policy and their quotas, and
// records who caused which traffic. Packets never pass through it: the kernel forwards them, also
// while no agent runs. Only package agent may import it.
//
// The way of a request, in the order of the files: Map (waypoint.go) hands it to the one goroutine
// that owns all state; grant.go decides with the index of live mappings (index.go) and the policy
// (egress); batch.go writes what concurrent requests decided as one transaction (rules) and answers
// them. The kernel's table is the truth: it is read back at the start and whenever a transaction
// says that the index is out of step (reconcile.go). flows.go follows the connections themselves
// for the attribution log and the snapshot.
package waypoint
