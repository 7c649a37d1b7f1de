// Package plan describes a sequence of faults: the hosts and links of its world, the traffic, and which faults strike
// when. A Plan depends only on its seed (generate.go), and can be printed, stored and shrunk (shrink.go). kinds.go lists
// the kinds of faults. The package does not use the kernel. For lab/chaos only.
package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

// Plan is one sequence: a world and the faults that strike it.
type Plan struct {
	Seed   uint64  `json:"seed"`
	World  World   `json:"world"`
	Faults []Fault `json:"faults"` // by time
}

// World is a network with a collective and its traffic.
type World struct {
	// Emulated links have a rate, a delay and a queue and cost netfilter's path only. The others are veth pairs, which
	// let a waypoint's fast path work.
	Emulated bool `json:"emulated"`
	// Coordinator makes the collective with `dcol init` and `dcol join`, and runs a coordinator. Otherwise members are
	// configured by files.
	Coordinator bool `json:"coordinator"`
	Waypoints   int  `json:"waypoints"` // honest ones
	// Liar adds a waypoint that the client uses as any other, and that lies.
	Liar     Lie      `json:"liar,omitempty"`
	Kinds    []string `json:"kinds"` // of detours, the preferred first
	Subflows int      `json:"subflows"`
	// Converter adds a converter, and traffic through it. There is no coordinator then.
	Converter Entrance `json:"converter,omitempty"`
	NAT       bool     `json:"nat"`  // the client is behind one
	IPv6      bool     `json:"ipv6"` // hosts have no IPv4, except routers
	// ServerTakes limits the subflows that join a connection at the server. nil is Linux' default.
	ServerTakes *int     `json:"server_takes,omitempty"`
	Checksums   bool     `json:"checksums"` // net.mptcp.checksum_enabled
	Streams     []Stream `json:"streams"`
}

// Stream is a series of connections, one after the other, each beside a twin that speaks plain TCP.
type Stream struct {
	Kind StreamKind     `json:"kind"`
	Port uint16         `json:"port"`
	Rate units.Rate     `json:"rate"`           // of each connection, at most
	Life units.Duration `json:"life,omitempty"` // of each connection; 0: as long as the world
	// Converted streams lead through the converter to a server without MPTCP. Their twins lead to the next port, not
	// through the converter.
	Converted bool `json:"converted,omitempty"`
}

// Entrance selects how connections come to the client's relay, and so to the converter.
type Entrance string

// The entrances.
const (
	ByProxy   Entrance = "proxy"   // SOCKS5
	ByGateway Entrance = "gateway" // from a host behind the client, which knows nothing of it
)

// StreamKind selects the direction of a stream.
type StreamKind string

// The kinds of streams. Messages go both ways: each is answered.
const (
	Download StreamKind = "download"
	Upload   StreamKind = "upload"
	Messages StreamKind = "messages"
)

// Lie selects how a waypoint lies.
type Lie string

// The lies.
const (
	// ForeignAddress grants addresses in tunnels that are not the waypoint's to give: the client's own, the server's,
	// public ones.
	ForeignAddress Lie = "foreign-address"
	// AbsurdLease grants for no time at all, or for a year.
	AbsurdLease Lie = "absurd-lease"
	// Nothing grants whatever is asked for and forwards nothing.
	Nothing Lie = "nothing"
)

// Lies lists all lies.
func Lies() []Lie { return []Lie{ForeignAddress, AbsurdLease, Nothing} }

// Fault is one fault of a plan.
type Fault struct {
	Kind   Kind   `json:"kind"`
	Target Target `json:"target"`
	// At counts from the first moment at which faults may strike.
	At units.Duration `json:"at"`
	// For is the duration, or 0 for faults that happen at once.
	For units.Duration `json:"for,omitempty"`
	// Amount is a share or a factor, depending on the kind.
	Amount float64 `json:"amount,omitempty"`
	// Setting is a kernel parameter and its value: "net.ipv4.tcp_sack=0".
	Setting string `json:"setting,omitempty"`
}

// End returns when the fault is over.
func (f Fault) End() time.Duration { return f.At.Std() + f.For.Std() }

func (f Fault) String() string {
	s := fmt.Sprintf("%6.2fs %s %s", f.At.Seconds(), f.Kind, f.Target)
	if f.For > 0 {
		s += fmt.Sprintf(" for %v", f.For.Std().Round(10*time.Millisecond))
	}
	if f.Amount > 0 {
		s += fmt.Sprintf(" (%.3g)", f.Amount)
	}
	if f.Setting != "" {
		s += " " + f.Setting
	}
	return s
}

func (w World) String() string {
	parts := []string{"veth links"}
	if w.Emulated {
		parts[0] = "emulated links"
	}
	add := func(is bool, word string) {
		if is {
			parts = append(parts, word)
		}
	}
	parts = append(parts, fmt.Sprintf("%d waypoints", w.Waypoints), "kinds "+strings.Join(w.Kinds, ","), fmt.Sprintf("%d subflows", w.Subflows))
	add(w.Liar != "", "a waypoint that lies: "+string(w.Liar))
	add(w.Coordinator, "coordinator")
	add(w.Converter != "", "converter by "+string(w.Converter))
	add(w.NAT, "client behind NAT")
	add(w.IPv6, "IPv6 only")
	if w.ServerTakes != nil {
		add(true, fmt.Sprintf("server takes %d more subflows", *w.ServerTakes))
	}
	add(w.Checksums, "checksums")
	for _, s := range w.Streams {
		life := "long"
		if s.Life > 0 {
			life = s.Life.String()
		}
		if s.Converted {
			life += " converted"
		}
		parts = append(parts, fmt.Sprintf("%s %v port %d %s", s.Kind, s.Rate, s.Port, life))
	}
	return strings.Join(parts, "; ")
}

// String returns the plan as text.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %v\n", p.Seed, p.World)
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "  %v\n", f)
	}
	return b.String()
}

// End returns when the last fault is over.
func (p Plan) End() time.Duration {
	var end time.Duration
	for _, f := range p.Faults {
		end = max(end, f.End())
	}
	return end
}

// Check returns an error for the first thing that cannot be carried out, because plans also come
// from files.
func (p Plan) Check() error {
	w := p.World
	switch {
	case w.Waypoints < 1 || w.Waypoints > MaxWaypoints:
		return fmt.Errorf("waypoints must be 1 to %d, not %d", MaxWaypoints, w.Waypoints)
	case w.Subflows < 1 || w.Subflows > 8:
		return fmt.Errorf("subflows must be 1 to 8, not %d", w.Subflows)
	case len(w.Streams) == 0:
		return errors.New("a world needs at least one stream")
	case w.Liar != "" && !slices.Contains(Lies(), w.Liar):
		return fmt.Errorf("liar must be one of %q, not %q", Lies(), w.Liar)
	case !slices.Contains([]Entrance{"", ByProxy, ByGateway}, w.Converter):
		return fmt.Errorf("converter must be %q, %q or missing, not %q", ByProxy, ByGateway, w.Converter)
	case w.Converter != "" && w.Coordinator:
		return errors.New("a world with a converter has no coordinator")
	case w.Converter == ByGateway && w.NAT:
		return errors.New("a gateway is behind no NAT")
	case w.IPv6 && (!w.bearsIPv6() || slices.Contains(w.Kinds, inBand)):
		return errors.New("a world without IPv4 has no NAT, no converter, no OpenVPN, no in-band detours and no waypoint that lies about IPv4 addresses")
	case w.ServerTakes != nil && *w.ServerTakes < 0:
		return fmt.Errorf("a server takes 0 or more subflows, not %d", *w.ServerTakes)
	}
	for _, s := range w.Streams {
		if !slices.Contains([]StreamKind{Download, Upload, Messages}, s.Kind) || s.Rate <= 0 || s.Port == 0 {
			return fmt.Errorf("stream %+v: it needs a kind, a port and a rate", s)
		}
		if s.Converted && w.Converter == "" {
			return fmt.Errorf("stream %+v: there is no converter", s)
		}
	}
	for i, f := range p.Faults {
		rule, ok := rules[f.Kind]
		switch {
		case !ok:
			return fmt.Errorf("fault %d: kind %q is unknown", i+1, f.Kind)
		case !rule.fits(w):
			return fmt.Errorf("fault %d: %s cannot happen in this world", i+1, f.Kind)
		case !slices.Contains(rule.targets(w), f.Target):
			return fmt.Errorf("fault %d: target must be one of %q, not %q", i+1, rule.targets(w), f.Target)
		case rule.settings != nil && !slices.Contains(rule.settings[f.Target], f.Setting):
			return fmt.Errorf("fault %d: setting must be one of %q, not %q", i+1, rule.settings[f.Target], f.Setting)
		case i > 0 && f.At < p.Faults[i-1].At:
			return fmt.Errorf("fault %d comes before the one that it follows", i+1)
		}
	}
	return nil
}

const inBand = "in-band"

// bearsIPv6 reports whether all that the world has works without IPv4, but for in-band detours beside others.
func (w World) bearsIPv6() bool {
	return !w.NAT && w.Converter == "" && w.Liar != ForeignAddress && !slices.Contains(w.Kinds, "openvpn") && !slices.Equal(w.Kinds, []string{inBand})
}

// MaxWaypoints limits the number of honest waypoints.
const MaxWaypoints = 4
