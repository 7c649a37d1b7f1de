// Package engine relays connections. It accepts them, learns from a Front which server each is for, connects to that
// server, and moves bytes in both directions until both ends are done. Either side may be MPTCP or TCP.
//
// # Loops and files
//
// Each processor has one loop on epoll. A connection belongs to the loop that accepted it, and has no goroutine.
//
//	engine.go       what callers give and get: Front, Step, Dial, Result, Config
//	loop.go         the events of epoll, and connections that come in
//	opening.go      asks the Front for the server
//	dialling.go     connects to the server
//	pair.go         the two ends of a connection, and how they close
//	move.go         moves bytes from one end to the other
//	pipe.go         pipes for bytes from TCP
//	socket.go       system calls
//	handshake.go    clients that sent data in their SYN, before their handshake ends
//	fastopen.go     data in the SYN to a server
//	lasting.go      options that only lasting connections need
//	budget.go       the bounds of connections and memory for all engines of a process
//	buffers.go      the sizes of the kernel's buffers
//	shares.go       the memory for them
//	shortage.go     too few descriptors or too little memory
//
// # How bytes move
//
// Bytes from TCP go through a pipe (splice), so that they are not copied. Bytes from MPTCP are read and written, because
// Linux copies them anyway. A connection has a pipe or a buffer only while its data waits for the other end, so idle
// connections cost a few hundred bytes.
//
// The engine passes on how each end closes: a half-closed connection stays open in the other direction, and a reset
// becomes a reset. If the process dies, the kernel resets its connections.
//
// # Words
//
//   - opening: the time in which the Front learns the server and the engine connects to it.
//   - pair: a connection to a client and one to its server. Each of the two is an end.
package engine
