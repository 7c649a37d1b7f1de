package wire

import (
	"fmt"
	"net/netip"
	"time"
)

// Version is the version of this language. Sides that differ cannot talk.
const Version = 1

// Type tells messages apart on the wire.
type Type uint8

// The message types. Numbers are never used again for something else.
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

// Message is one of the types below.
type Message interface {
	messageType() Type
	body() (any, error)
}

// Hello is the first message of each side, the client's first. A client leaves all but Version empty.
// A waypoint says it again, unasked, when something of it has changed.
type Hello struct {
	Version  uint
	Offers   []Kind         // what the waypoint offers
	Lease    time.Duration  // how long a mapping lives when it is not asked for again
	Observed netip.AddrPort // where the client's packets come from, as the waypoint sees it
	// Closed is why the waypoint gives nothing to anybody for now; 0: it does. ClosedFor is how long
	// that will last; 0: it does not know.
	Closed    Code
	ClosedFor time.Duration
	// Session is the waypoint's name for this session, for the client's statement.
	Session SessionID
}

// MapRequest asks for a port of the waypoint that leads to Server. The mapping is for the session's
// source address, which is why none stands here. Asking again renews.
type MapRequest struct {
	ID       uint64
	Server   netip.AddrPort
	Proposed uint16 // the port the client would like; 0: any
}

// MapGrant answers a MapRequest: TCP from Client to Port of the waypoint reaches the server.
type MapGrant struct {
	ID     uint64
	Port   uint16
	Lease  time.Duration
	Client netip.Addr
}

// Left is for a session that follows one which broke: From is where the waypoint saw the client in that
// one, and the client is no longer there. A client says it right after its statement, or not at all;
// it is not answered.
type Left struct {
	From netip.AddrPort
}

// Ping asks for a Pong. It shows that the waypoint lives and what address it sees.
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
