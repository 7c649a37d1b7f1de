package api

import (
	"net/netip"
	"time"
)

// Relay describes the process that relays converted connections, for others or for this host's programs.
type Relay struct {
	Version string      `json:"version"`
	PID     int         `json:"pid"`
	Parts   []RelayPart `json:"parts"`
}

// RelayPart is one way in which connections come to the relay.
type RelayPart struct {
	// Name is "converter" for members' connections, "proxy" for those of SOCKS5 and HTTP CONNECT, "gateway" for those of
	// the hosts of a LAN, "programs" with the address family for those of this host's programs, "incoming at PORT for
	// MEMBER" for those that are taken for a member that listens, and "incoming" for those that converters bring this host.
	Name    string `json:"name"`
	Listen  string `json:"listen"`
	Problem string `json:"problem,omitempty"` // why it does not listen
	Open    int64  `json:"open"`              // connections now
	// Since the relay started.
	Accepted int64 `json:"accepted"`
	Refused  int64 `json:"refused"` // whose opening failed
	Bytes    int64 `json:"bytes"`   // of both directions
}

// Converting describes the use of other members' converters.
type Converting struct {
	Use        string      `json:"use"` // never, auto or always
	Converters []Converter `json:"converters"`
	// Offered are the waypoints in use that offer a converter, even if none is wanted. Whether they admit this host is known
	// only after a request.
	Offered []string `json:"offered,omitempty"`
	// Refused are waypoints that offer a converter which this host cannot use, each with the reason.
	Refused []RefusedConverter `json:"refused,omitempty"`
	// Incoming are the ports of converters at which they take connections for services of this host, or are asked to.
	Incoming []Incoming `json:"incoming,omitempty"`
}

// Incoming is a port of a converter at which it takes connections for a service of this host.
type Incoming struct {
	Converter string         `json:"converter"` // the member
	Port      uint16         `json:"port"`      // of the converter
	Addr      netip.Addr     `json:"address"`   // of the converter; invalid: there is no session with it
	To        netip.AddrPort `json:"to"`        // the service
	Granted   bool           `json:"granted"`
	Why       string         `json:"why,omitempty"` // the converter takes no connections
}

// RefusedConverter is a converter to which this host was not admitted.
type RefusedConverter struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Converter is a converter to which this host is admitted.
type Converter struct {
	Name string         `json:"name"`
	Addr netip.AddrPort `json:"address"`
	RTT  float64        `json:"rtt_ms"` // 0: unknown
	// Excluded is set if connections to it get no detours, because its address is in client.exclude.
	Excluded bool `json:"excluded,omitempty"`
	// BehindNAT is set if it is called at its end of a tunnel, because its host is behind a NAT. Connections to it get no detours.
	BehindNAT bool `json:"behind_nat,omitempty"`
	// AsideUntil is set while connections go by other ways, because it does not work.
	AsideUntil time.Time `json:"aside_until,omitzero"`
	// Refuses is set with AsideUntil if it refused to connect to one server after the other.
	Refuses bool `json:"refuses,omitempty"`
}

// ConvertRequest changes for which servers converters are used, until the agent's next start.
type ConvertRequest struct {
	Use string `json:"use"` // never, auto or always
}
