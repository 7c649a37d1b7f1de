// Package twin makes pairs of connections between two hosts: one that requests
// MPTCP, and beside it one of plain TCP, with the same traffic at the same time.
// The first must survive everything that its twin survives. All bytes are
// pseudo-random, by seed and position, and compared where they arrive.
//
// Both ends of every connection are goroutines of this process; their sockets
// are the hosts'. For lab/chaos only.
package twin
