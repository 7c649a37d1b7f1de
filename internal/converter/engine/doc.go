// Package engine relays connections: it accepts them, learns from a Front which server each is for,
// connects to that, and moves bytes in both directions until both ends are done. Either side may be
// MPTCP or TCP.
//
// Each processor has one loop on epoll, and no connection has a goroutine:
//
//	loop.go       events of epoll; a connection comes in       move.go       bytes, from one end to the other
//	opening.go    the Front says which server                  pipe.go       where bytes from TCP wait
//	dialling.go   connect to it                                socket.go     what is asked of the kernel
//	pair.go       the two ends, how they close                 handshake.go  clients that said something in their SYN
//	shortage.go   too few descriptors                         lasting.go    what only connections that last need
//
// Bytes from TCP go through a pipe (splice), so that they are not copied; bytes from MPTCP are read
// and written, because Linux copies them anyway. A pipe and a buffer belong to a connection only while
// its data waits for the other end, so idle connections cost a few hundred bytes.
//
// Ends pass on as they come: a half-closed connection stays open in the other direction, and a reset
// becomes a reset. If the process dies, the kernel resets its connections.
package engine
