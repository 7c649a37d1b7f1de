package wire

import (
	"net/netip"
	"time"
)

// Version is the version of the protocol. Both sides must have the same one.
const Version = 1

// Message is one of the message types below.
type Message interface{ body() (Type, body) }

// Hello is the first message of each side, the client's first. A client sets only Version. A
// waypoint sends it again when its contents have changed.
type Hello struct {
	Version  uint
	Offers   []Kind         // what the waypoint offers
	Lease    time.Duration  // lifetime of a mapping without renewal
	Observed netip.AddrPort // source of the client's packets as the waypoint sees it
	// Closed is the reason why the waypoint gives nothing to any member for now, or 0. ClosedFor is the time until it
	// opens again; 0: unknown.
	Closed    Code
	ClosedFor time.Duration
	// Session is the waypoint's ID of this session, for the client's statement.
	Session SessionID
	// LoadedFor is the time for which members should prefer other waypoints, as far as the waypoint knows now. It is 0
	// if the waypoint is not loaded. LoadedGives is the rate that one more member would get, in bits a second, if the
	// waypoint is loaded or one member uses all of its capacity. Otherwise, or if the waypoint does not know the rate,
	// it is 0.
	LoadedFor   time.Duration
	LoadedGives uint64
}

// MapRequest requests a port of the waypoint that is forwarded to Server. The mapping is for the
// session's source address, so the message contains none. Repeating it renews the mapping.
type MapRequest struct {
	ID       uint64
	Server   netip.AddrPort
	Proposed uint16 // the preferred port; 0: any
	// Sole is set if the client has no other waypoint. A loaded waypoint then serves it.
	Sole bool
}

// MapGrant answers a MapRequest: TCP from Client to Port of the waypoint reaches the server.
type MapGrant struct {
	ID     uint64
	Port   uint16
	Lease  time.Duration
	Client netip.Addr
}

// Left is sent in a session that follows a broken one. From is the address at which the waypoint saw the client in the
// broken session, and which the client has left. Left may only be sent right after the client's statement, and is not
// answered.
type Left struct {
	From netip.AddrPort
}

// Ping requests a Pong, which shows that the waypoint is alive and what address it sees.
type Ping struct {
	ID uint64
}

// Pong answers a Ping.
type Pong struct {
	ID       uint64
	Observed netip.AddrPort
}

// TunnelRequest requests a service that is set up once for all servers: any kind except Mapped. It is for the session's
// source address. Repeating it renews the grant.
type TunnelRequest struct {
	ID        uint64
	Kind      Kind
	Local     netip.Addr     // source address of the client's packets, from which the waypoint detects a NAT; may be absent
	PublicKey []byte         // of the client's end of the tunnel, 32 bytes; absent if the kind has none
	Avoid     []netip.Prefix // networks in use at the client, from which it accepts no address
	// Port is the UDP source port of the client's end of the tunnel, or 0 if unknown. A waypoint
	// whose NAT only lets in packets from addresses it has sent to sends a packet there. With
	// Incoming, it is the TCP port at which the client's relay listens.
	Port uint16
	// Incoming are the ports at which a converter shall accept connections for the client. They replace those of
	// earlier requests from the same address.
	Incoming []Incoming
	// From is the address from which the client will connect to the converter, if that is its address in a WireGuard
	// tunnel. Zero means the session's source address.
	From netip.Addr
	// To is the converter's address as the client knows it. It is set if From is. If the waypoint's host does not have
	// this address, it is behind a NAT.
	To netip.Addr
}

// MostIncoming is the largest number of ports at which a converter accepts connections for one member.
const MostIncoming = 8

// Incoming is a port of a converter. Cookie has 24 bytes. It proves to the client's relay that the converter accepted a
// connection at this port.
type Incoming struct {
	Port   uint16
	Cookie []byte
}

// TunnelGrant is the positive answer to a TunnelRequest. The fields that are set depend on the
// kind.
type TunnelGrant struct {
	ID     uint64
	Kind   Kind
	Lease  time.Duration
	Client netip.Addr // the session's source address as the waypoint sees it
	// Key authenticates in-band SYNs, 16 bytes. If absent, SYNs need no authentication.
	Key []byte
	// ClientPort is set if no NAT changes the client's address and ports, so that Key also covers
	// the port.
	ClientPort bool
	PublicKey  []byte         // of the waypoint's end of the tunnel, 32 bytes
	Port       uint16         // UDP port of the waypoint's end of the tunnel; 0: none
	Addresses  []netip.Prefix // the client's addresses in the tunnel, with the length of their subnets
	MTU        uint16         // of the tunnel, in bytes; 0: none
	// Cookie has 24 bytes. It proves to a converter that a connection is the member's. The converter listens at Port,
	// of TCP.
	Cookie []byte
	// Incoming has an answer for each requested port, in the same order. It is absent from waypoints with an older
	// dcol.
	Incoming []IncomingGrant
	// From is the From of the request, if Cookie is valid for connections from there. It is absent from waypoints with
	// an older dcol.
	From netip.Addr
	// At is the address of the waypoint's host in the tunnel, at which the client reaches the converter. It is set if
	// the host does not have the request's To address.
	At netip.Addr
}

// IncomingGrant reports whether a converter accepts connections for the client at a port.
type IncomingGrant struct {
	Port    uint16
	Refused Code // why not; 0: it does
}
