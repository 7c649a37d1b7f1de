// Package twin makes pairs of connections between two hosts. One connection of a pair requests MPTCP. The other, its twin,
// is plain TCP and has the same traffic at the same time. The first must survive everything that its twin survives. All
// bytes are pseudo-random, by seed and position, and are checked where they arrive.
//
// Both ends of every connection are goroutines of this process. Their sockets are in the hosts' network namespaces.
// pool.go opens and ends pairs, conn.go and send.go run one connection, content.go has its bytes, and socket.go its
// sockets. For lab/chaos only.
package twin
