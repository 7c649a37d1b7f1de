// Package rules is a waypoint's nftables table: its maps, sets and chains, how mappings get into it,
// and how they are read back after a restart. The kernel's table is the truth about mappings; what
// the agent holds in memory mirrors it. Only package waypoint may import it.
//
// A connection's way through the table, in the order of schema.go: prerouting finds the mapping of
// (client address, port) with one lookup however many there are, marks the connection with its
// member and rewrites the destination; forward applies the member's limits; postrouting puts this
// host's address in place of the client's. All later packets follow the connection's conntrack
// entry and see only the forward chain.
package rules
