// Package rules is a waypoint's nftables table: its maps, sets and chains, how mappings and
// admissions get into it, and how they are read back after a restart. The kernel's table is the truth
// about them; what the agent holds in memory mirrors it.
//
// A connection's way through the table, in the order of schema.go. Prerouting marks the connection
// with its member and kind of detour, and rewrites the destination: a SYN that names its server goes
// through the chain inband, any other finds the mapping of (client address, port) with one lookup
// however many there are. Forward sends what is marked to the chain ours, which applies the member's
// limits and those of all members, and counts for the quota; what comes out of a tunnel, and is not,
// is marked by its source or thrown out. Postrouting puts this host's address in place of the client's.
// All later packets follow the connection's conntrack entry and see only the chains forward, ours and
// month.
package rules
