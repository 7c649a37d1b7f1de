// Package twin makes pairs of connections between two hosts: one that asks for
// MPTCP, and beside it one that speaks plain TCP, with the same traffic at the
// same time. What the plain one survives, the other must survive. All bytes are
// pseudo-random, by seed and position, and compared where they arrive.
//
// Both ends of every connection are goroutines of this process; their sockets
// are the hosts'. For lab/chaos only.
package twin
