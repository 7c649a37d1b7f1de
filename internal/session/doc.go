// Package session implements sessions between members: QUIC with mutual TLS 1.3 between a client's
// agent (Client, one for each address of a waypoint) and a waypoint's agent (Server). Over a
// session, a client asks for mappings and tunnels and measures round-trip time and loss. It also
// learns its own address as the waypoint sees it.
//
// A session is one QUIC connection with one stream, on which both sides pipeline messages (package
// wire). A client's socket is bound to no address: the kernel picks the source of each packet. So
// when the host's address changes, the session's packets come from the new one and QUIC validates
// the new path (RFC 9000, 9.3). Grants are for the session's validated source address, not for one
// named by the client.
//
// A server may serve streams of bytes beside the messages (Aside), one at a time of each session.
package session
