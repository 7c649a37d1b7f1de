// Package rules implements a waypoint's nftables table: its maps, sets and chains, writing mappings and admissions, and
// reading them back after a restart. The kernel's table is authoritative; the agent's memory mirrors it.
//
// A connection passes the table in the order of schema.go. Prerouting marks the connection with its member and kind of
// detour, and rewrites the destination: a SYN that names its server goes through the chain inband; for any other the
// mapping of (client address, port) is found with a single lookup. Forward sends marked packets to the chain ours, which
// applies the limits of the member and of all members, and counts for the quota. Unmarked packets out of a tunnel are
// marked by their source address, or rejected. Postrouting replaces the client's address by this host's. All later packets
// follow the connection's conntrack entry and pass only the chains forward, ours and month.
package rules
