// Package session keeps members in touch: QUIC with mutual TLS 1.3 between the agent of a client
// (Client, one for each address of a waypoint) and the agent of a waypoint (Server). Over a session a
// client asks for mappings and tunnels and learns round-trip time, loss and the address the waypoint sees
// it at.
//
// One session is one QUIC connection with one stream; both sides pipeline messages (package wire) on it.
// A client's socket is bound to no address: the kernel picks the source of each packet, so when the
// host's address changes the session simply arrives from elsewhere and QUIC validates the new path
// (RFC 9000, 9.3). Grants are for the validated source address of the session, nothing a client says.
//
// It imports collective of ours; detour and agent may import it.
package session
