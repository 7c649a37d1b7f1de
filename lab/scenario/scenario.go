// Package scenario is the lab's input: a TOML file that declares a network,
// what runs on it, how often, and what must hold. It parses strictly, checks
// everything that can be known without building anything, and touches nothing:
// lab/experiment builds what a Scenario says, lab/report shows what came out.
//
// docs/lab.md documents every key; a test holds it to that.
package scenario

import (
	"github.com/detour-collective/dcol/internal/units"
)

// Schema is the version of the file format this package reads.
const Schema = "dcol.scenario/1"

// Base is the name of the variant that is the network as declared.
const Base = "base"

// DirectPath names the path without a waypoint; the others bear the waypoint's name.
const DirectPath = "direct"

// Scenario is a whole file, with the defaults filled in.
type Scenario struct {
	Schema      string `toml:"schema"`
	Name        string `toml:"name"`
	Description string `toml:"description"`
	Congestion  string `toml:"congestion_control"`
	Repetitions int    `toml:"repetitions"`
	Seed        int64  `toml:"seed"`
	// Varied names the link whose loss and delay tell the variants apart.
	Varied     string        `toml:"varied"`
	Hosts      []Host        `toml:"host"`
	Links      []Link        `toml:"link"`
	Variants   []Variant     `toml:"variant"` // after Parse, those of the sweeps too
	Sweeps     []Sweep       `toml:"sweep"`
	Workload   Workload      `toml:"workload"`
	Procedures []Procedure   `toml:"procedure"`
	Events     []Event       `toml:"event"`
	Expects    []Expectation `toml:"expect"`
}

// Role says what a host does.
type Role string

// The roles a host can have; a host may be both client and waypoint.
const (
	RoleClient   Role = "client"
	RoleWaypoint Role = "waypoint"
	RoleServer   Role = "server"
	RoleRouter   Role = "router"
)

// Host is one host of the network.
type Host struct {
	Name  string `toml:"name"`
	Roles []Role `toml:"roles"`
	// What a router does to packets: to options in SYNs; to those from and to
	// its links that are inside, when it has any.
	Middlebox Middlebox `toml:"middlebox"`
	NAT       []string  `toml:"nat"`
	NATKind   NATKind   `toml:"nat_kind"`
	Forwards  []Forward `toml:"forward"`
	// Subflows is how many a server takes besides an MPTCP connection's first; 0: as
	// many as its kernel does by itself.
	Subflows int `toml:"mptcp_subflows"`
	// DCol is laid over the configuration the lab writes for this host's agent.
	DCol map[string]any `toml:"dcol"`
}

// Has reports whether the host has the role.
func (h Host) Has(r Role) bool {
	for _, have := range h.Roles {
		if have == r {
			return true
		}
	}
	return false
}

// Params are the properties of a link in one or both directions. What is not
// set is taken from what they are laid over.
type Params struct {
	Rate   *units.Rate     `toml:"rate"`
	Delay  *units.Duration `toml:"delay"`
	Jitter *units.Duration `toml:"jitter"`
	Loss   *units.Share    `toml:"loss"`
	Queue  *Queue          `toml:"queue"`
}

// Over lays p over base.
func (p Params) Over(base Params) Params {
	if p.Rate != nil {
		base.Rate = p.Rate
	}
	if p.Delay != nil {
		base.Delay = p.Delay
	}
	if p.Jitter != nil {
		base.Jitter = p.Jitter
	}
	if p.Loss != nil {
		base.Loss = p.Loss
	}
	if p.Queue != nil {
		base.Queue = p.Queue
	}
	return base
}

// IsZero reports whether nothing is set.
func (p Params) IsZero() bool { return p == Params{} }

// Shape is what a link does in each direction: what holds for both, and what
// differs from A to B and from B to A.
type Shape struct {
	Params
	AtoB Params `toml:"a_to_b"`
	BtoA Params `toml:"b_to_a"`
}

// Over lays s over base. What s says of both directions wins over what base
// says of one: "the link loses 1 %" means both ways.
func (s Shape) Over(base Shape) Shape {
	return Shape{
		Params: s.Params.Over(base.Params),
		AtoB:   s.AtoB.Over(s.Params.Over(base.AtoB)),
		BtoA:   s.BtoA.Over(s.Params.Over(base.BtoA)),
	}
}

// Directions resolves the shape into its two directions.
func (s Shape) Directions() (ab, ba Params) {
	return s.AtoB.Over(s.Params), s.BtoA.Over(s.Params)
}

// Link joins two hosts.
type Link struct {
	Name string `toml:"name"`
	A    string `toml:"a"`
	B    string `toml:"b"`
	Cost int    `toml:"cost"`
	MTU  int    `toml:"mtu"`
	Shape
}

// Change is a link's new shape, in a variant or an event.
type Change struct {
	Link string `toml:"link"`
	Shape
}

// Variant is a named set of changes to the network and the workload as declared.
type Variant struct {
	Name        string         `toml:"name"`
	Description string         `toml:"description"`
	Changes     []Change       `toml:"change"`
	Workload    WorkloadChange `toml:"workload"`
	// Coordinates say where a variant of a sweep stands, by axis; others have none.
	Coordinates []Coordinate
}

// Event happens inside every run, At after the workload's start.
type Event struct {
	At units.Duration `toml:"at"`
	Change
	// Down takes the link down (true) or up again (false).
	Down *bool `toml:"down"`
	// Kill is a host that dies: its programs are killed, its links go down.
	Kill string `toml:"kill"`
}

// Host returns the host of that name.
func (s *Scenario) Host(name string) (Host, bool) {
	for _, h := range s.Hosts {
		if h.Name == name {
			return h, true
		}
	}
	return Host{}, false
}

// Link returns the link of that name.
func (s *Scenario) Link(name string) (Link, bool) {
	for _, l := range s.Links {
		if l.Name == name {
			return l, true
		}
	}
	return Link{}, false
}

// Variant returns the variant of that name; Base is always there.
func (s *Scenario) Variant(name string) (Variant, bool) {
	for _, v := range s.Variants {
		if v.Name == name {
			return v, true
		}
	}
	if name == Base {
		return Variant{Name: Base, Description: "the network as declared"}, true
	}
	return Variant{}, false
}

// VariantNames lists all variants, Base first.
func (s *Scenario) VariantNames() []string {
	names := []string{Base}
	for _, v := range s.Variants {
		names = append(names, v.Name)
	}
	return names
}

// WithRole lists the names of the hosts that have the role.
func (s *Scenario) WithRole(r Role) []string {
	var names []string
	for _, h := range s.Hosts {
		if h.Has(r) {
			names = append(names, h.Name)
		}
	}
	return names
}

// Shapes are the shapes of all links under a variant, in the links' order.
func (s *Scenario) Shapes(v Variant) []Shape {
	shapes := make([]Shape, len(s.Links))
	for i, l := range s.Links {
		shapes[i] = l.Shape
		for _, c := range v.Changes {
			if c.Link == l.Name {
				shapes[i] = c.Shape.Over(shapes[i])
			}
		}
	}
	return shapes
}
