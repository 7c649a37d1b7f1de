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

// RelayPart is one kind of connections that the relay accepts.
type RelayPart struct {
	// Name is one of:
	//
	//   - "converter": members' connections
	//   - "proxy": connections by SOCKS5 and HTTP CONNECT
	//   - "gateway" with the address family: connections of the hosts of a LAN
	//   - "programs" with the address family: connections of this host's programs
	//   - "incoming at PORT for MEMBER": connections accepted for a member that listens
	//   - "incoming": connections that converters bring to this host
	Name    string `json:"name"`
	Listen  string `json:"listen"`
	Problem string `json:"problem,omitempty"` // why it does not listen
	Open    int64  `json:"open"`              // connections now
	// Accepted, Refused and Bytes count since the relay started.
	Accepted int64 `json:"accepted"`
	Refused  int64 `json:"refused"` // connections that could not be opened
	Bytes    int64 `json:"bytes"`   // in both directions together
}

// Converting describes the use of other members' converters.
type Converting struct {
	Use        string      `json:"use"` // never, auto or always
	Converters []Converter `json:"converters"`
	// Offered lists the waypoints in use that offer a converter, even if none is wanted. Only a request shows whether
	// they admit this host.
	Offered []string `json:"offered,omitempty"`
	// Refused are waypoints that offer a converter which this host cannot use, each with the reason.
	Refused []RefusedConverter `json:"refused,omitempty"`
	// Excluded lists addresses to which connections go directly because an excluded domain leads there. The list is cut off
	// after some; ExcludedAll counts all.
	Excluded    []ExcludedAddress `json:"excluded,omitempty"`
	ExcludedAll int               `json:"excluded_all,omitempty"`
	// Incoming lists the converters' ports that are requested or granted for services of this host.
	Incoming []Incoming `json:"incoming,omitempty"`
}

// Incoming is a port of a converter that accepts connections for a service of this host.
type Incoming struct {
	Converter string         `json:"converter"` // the member
	Port      uint16         `json:"port"`      // of the converter
	Addr      netip.Addr     `json:"address"`   // of the converter; invalid: there is no session with it
	To        netip.AddrPort `json:"to"`        // the service
	Granted   bool           `json:"granted"`
	Why       string         `json:"why,omitempty"` // why the converter accepts no connections
}

// ExcludedAddress is an address to which an excluded name leads.
type ExcludedAddress struct {
	Addr  netip.Addr `json:"address"`
	Name  string     `json:"name"`
	Until time.Time  `json:"until"`
}

// RefusedConverter is a converter to which this host was not admitted.
type RefusedConverter struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Converter is a converter to which this host is admitted, and to which its relay connects.
type Converter struct {
	Name string         `json:"name"`
	Addr netip.AddrPort `json:"address"`
	RTT  float64        `json:"rtt_ms"` // 0: unknown
	// Excluded is set if connections to it get no detours, because its address is in client.exclude.
	Excluded bool `json:"excluded,omitempty"`
	// BehindNAT is set if its host is behind a NAT, so that it is reached at its end of a tunnel. Connections to it get
	// no detours.
	BehindNAT bool `json:"behind_nat,omitempty"`
	// AsideUntil is set while connections do not use it, because it does not work.
	AsideUntil time.Time `json:"aside_until,omitzero"`
	// Refuses is set with AsideUntil if connections through it to several servers in a row failed.
	Refuses bool `json:"refuses,omitempty"`
}

// ConvertRequest changes for which servers converters are used, until the agent restarts.
type ConvertRequest struct {
	Use string `json:"use"` // never, auto or always
}
