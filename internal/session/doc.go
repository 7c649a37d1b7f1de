// Package session implements sessions between members: QUIC with mutual TLS 1.3 between a client's agent (Client, one
// for each address of a waypoint) and a waypoint's agent (Server). Over a session, a client requests mappings and
// tunnels, and measures round-trip time and loss. It also learns its own address as the waypoint sees it.
//
// A session is one QUIC connection with one stream, on which both sides pipeline messages (package wire). A client's
// socket is bound to no address: the kernel chooses the source of each packet. So if the host's address changes, the
// session's packets come from the new one, and QUIC validates the new path (RFC 9000, 9.3). Grants are for the
// session's validated source address. The client cannot name another one.
//
// A server may also serve streams of bytes beside the messages (Aside), one at a time for each session.
//
//	client.go dial.go call.go    the client: its loop, opening a session, one open session
//	request.go                   the client's requests for mappings and tunnels
//	state.go problem.go          what a client knows of a waypoint, and why it cannot be used
//	move.go                      a session that follows a change of the host's address
//	loss.go                      loss on the way to the waypoint
//	try.go                       a session only to test whether a member can be reached
//	server.go serve.go answer.go the waypoint: its socket, one session, its requests
//	registry.go                  open sessions and members' limits
//	attest.go                    the member's signed statement for each session
//	news.go                      changes that a waypoint announces in sessions
//	aside.go                     streams beside the messages
//	other.go                     packets at the sessions' port that are not QUIC
//	outbox.go quic.go            what both sides use
package session
