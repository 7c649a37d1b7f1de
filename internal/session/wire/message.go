package wire

import (
	"fmt"
	"net/netip"
	"time"
)

// Version is the version of the protocol. Both sides must have the same one.
const Version = 1

// Type identifies a message's type on the wire.
type Type uint8

// The message types. Numbers are never reused.
const (
	TypeHello         Type = 1
	TypeMapRequest    Type = 2
	TypeMapGrant      Type = 3
	TypeRefusal       Type = 4
	TypePing          Type = 5
	TypePong          Type = 6
	TypeTunnelRequest Type = 7
	TypeTunnelGrant   Type = 8
	TypeAttestation   Type = 9
	TypeLeft          Type = 10
)

// Message is one of the message types below.
type Message interface {
	messageType() Type
	body() (any, error)
}

// Hello is the first message of each side, the client's first. A client sets only Version. A
// waypoint sends it again when its contents have changed.
type Hello struct {
	Version  uint
	Offers   []Kind         // what the waypoint offers
	Lease    time.Duration  // lifetime of a mapping without renewal
	Observed netip.AddrPort // source of the client's packets as the waypoint sees it
	// Closed is the reason for which the waypoint gives nothing to any member for now, or 0.
	// ClosedFor is how long that will last, or 0 if unknown.
	Closed    Code
	ClosedFor time.Duration
	// Session is the waypoint's ID of this session, for the client's statement.
	Session SessionID
}

// MapRequest requests a port of the waypoint that is forwarded to Server. The mapping is for the
// session's source address, so the message contains none. Repeating it renews the mapping.
type MapRequest struct {
	ID       uint64
	Server   netip.AddrPort
	Proposed uint16 // the preferred port; 0: any
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

func (Hello) messageType() Type         { return TypeHello }
func (MapRequest) messageType() Type    { return TypeMapRequest }
func (MapGrant) messageType() Type      { return TypeMapGrant }
func (Refusal) messageType() Type       { return TypeRefusal }
func (Ping) messageType() Type          { return TypePing }
func (Pong) messageType() Type          { return TypePong }
func (TunnelRequest) messageType() Type { return TypeTunnelRequest }
func (TunnelGrant) messageType() Type   { return TypeTunnelGrant }
func (Left) messageType() Type          { return TypeLeft }

func (t Type) String() string {
	switch t {
	case TypeHello:
		return "hello"
	case TypeMapRequest:
		return "map request"
	case TypeMapGrant:
		return "map grant"
	case TypeRefusal:
		return "refusal"
	case TypePing:
		return "ping"
	case TypePong:
		return "pong"
	case TypeTunnelRequest:
		return "tunnel request"
	case TypeTunnelGrant:
		return "tunnel grant"
	case TypeAttestation:
		return "attestation"
	case TypeLeft:
		return "left"
	}
	return fmt.Sprintf("type %d", uint8(t))
}
