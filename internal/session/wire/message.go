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
	// Closed is the reason for which the waypoint gives nothing to any member for now, or 0.
	// ClosedFor is the time until it opens again; 0: unknown.
	Closed    Code
	ClosedFor time.Duration
	// Session is the waypoint's ID of this session, for the client's statement.
	Session SessionID
	// LoadedFor is the time for which members who have another waypoint are asked to use that, as far as the waypoint
	// knows now. 0: the waypoint is not loaded. LoadedGives is the rate that one more member would get, in bits a second, if it is loaded or
	// one member uses all of it. 0: the waypoint does not know it, or is neither.
	LoadedFor   time.Duration
	LoadedGives uint64
}

// MapRequest requests a port of the waypoint that is forwarded to Server. The mapping is for the
// session's source address, so the message contains none. Repeating it renews the mapping.
type MapRequest struct {
	ID       uint64
	Server   netip.AddrPort
	Proposed uint16 // the preferred port; 0: any
	// Sole is set if the client has no other waypoint, so that a loaded one serves it.
	Sole bool
}

// MapGrant answers a MapRequest: TCP from Client to Port of the waypoint reaches the server.
type MapGrant struct {
	ID     uint64
	Port   uint16
	Lease  time.Duration
	Client netip.Addr
}

// Left is sent in a session that follows a broken one: From is where the waypoint saw the client in
// that one, and the client has left that address. It may only be sent right after the client's
// statement, and is not answered.
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

// TunnelRequest requests help of a kind that is set up once for all servers: every kind except
// Mapped. It is for the session's source address. Repeating it renews the grant.
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
	// Incoming are the ports at which a converter shall take connections for the client, in place
	// of those that it asked for before from the same address.
	Incoming []Incoming
	// From is the address in a WireGuard tunnel of the client's from which it will connect to the
	// converter. Zero: it is the session's source address.
	From netip.Addr
	// To is the address of the converter that the client knows, if it names From. The waypoint is
	// behind a NAT if its host does not have that.
	To netip.Addr
}

// MostIncoming is the number of ports at which a converter takes connections for one member, at most.
const MostIncoming = 8

// Incoming is a port of a converter. Cookie proves to the client's relay that a connection is one that
// the converter has taken there, 24 bytes.
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
	// Cookie proves to a converter that a connection is the member's, 24 bytes. Its port is Port, of TCP.
	Cookie []byte
	// Incoming answers the ports that were asked for, in their order. Waypoints that know nothing of
	// them, as their dcol is older, leave it out.
	Incoming []IncomingGrant
	// From repeats that of the request, if Cookie is valid from there. Waypoints that know nothing of
	// it, as their dcol is older, leave it out.
	From netip.Addr
	// At is the address of the waypoint's host in the tunnel at which the converter is called from
	// there, if that host does not have the address that the client named. Absent: it has.
	At netip.Addr
}

// IncomingGrant says whether a converter takes connections for the client at a port.
type IncomingGrant struct {
	Port    uint16
	Refused Code // why not; 0: it does
}
