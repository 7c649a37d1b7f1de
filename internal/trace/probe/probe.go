// Package probe has the language that describes probes (thesis, 3.3): layers joined by '/', '+' or '.', such as
//
//	IP / tcp{dst=443} / mss(1460) / MPCAPABLE / WSCALE
//
// Names in lower case are functions with arguments, those in upper case are macros. The same functions serve
// scripts in Lua.
package probe

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/tomlfile"
)

// Layer is a header, an option or a payload.
type Layer struct {
	name  string
	level level
	apply func(b *build) error
}

// level orders layers: each may follow only what is below it.
type level int

const (
	levelIP level = iota
	levelTransport
	levelOption
	levelPayload
)

// Probe is a stack of layers.
type Probe []Layer

// Args are the arguments of a function: by their names, or by their places.
type Args struct {
	Named map[string]any // int64 or string
	List  []any
}

// Call returns the layers that a function makes.
func Call(name string, args Args) (Probe, error) {
	f, ok := functions[name]
	if !ok {
		return nil, fmt.Errorf("there is no function %q%s", name, tomlfile.Nearest(name, Functions()))
	}
	a := &arguments{function: name, args: args, used: map[string]bool{}}
	layers := f(a)
	if err := a.finish(); err != nil {
		return nil, err
	}
	return layers, nil
}

// Macro returns the layers that a name in upper case stands for.
func Macro(name string) (Probe, error) {
	parts, ok := macros[name]
	if !ok {
		return nil, fmt.Errorf("there is no macro %q%s", name, tomlfile.Nearest(name, Macros()))
	}
	var p Probe
	for _, part := range parts {
		layers, err := Call(part, Args{})
		if err != nil {
			return nil, fmt.Errorf("macro %s: %w", name, err)
		}
		p = append(p, layers...)
	}
	return p, nil
}

// Functions lists the names in lower case.
func Functions() []string { return slices.Sorted(maps.Keys(functions)) }

// Macros lists the names in upper case.
func Macros() []string { return slices.Sorted(maps.Keys(macros)) }

// Env holds the values that a probe leaves open.
type Env struct {
	Source, Destination netip.Addr
	Random              *rand.Rand
}

// Built is a packet, and which of its fields its author has chosen.
type Built struct {
	Packet  *packet.Packet
	FixedID bool
}

// build is a packet that is being put together.
type build struct {
	env      Env
	p        *packet.Packet
	built    Built
	protocol int // chosen by the author; -1: none
}

// IPv6 reports whether the probe is of IPv6. said is false if the probe does not choose between IPv4 and IPv6.
func (p Probe) IPv6() (six, said bool) {
	if len(p) > 0 && p[0].level == levelIP {
		return p[0].name == "ipv6", true
	}
	return false, false
}

// Has reports whether the probe has a layer of a name, such as "udp".
func (p Probe) Has(name string) bool {
	return slices.ContainsFunc(p, func(l Layer) bool { return l.name == name })
}

// Build makes a packet of a probe. Its lengths and checksums are right.
func (p Probe) Build(env Env) (Built, error) {
	if len(p) == 0 {
		return Built{}, errors.New("the probe is empty: write at least IP / TCP")
	}
	b := &build{env: env, p: &packet.Packet{}, protocol: -1}
	if p[0].level != levelIP {
		base := "ip"
		if !env.Destination.Is4() {
			base = "ipv6"
		}
		layers, err := Call(base, Args{})
		if err != nil {
			return Built{}, err
		}
		p = append(layers, p...)
	}
	for i, l := range p {
		if i > 0 && (l.level < p[i-1].level || l.level == p[i-1].level && l.level < levelOption) {
			return Built{}, fmt.Errorf("%s cannot follow %s: write IP, then one of TCP, UDP and ICMP, then TCP options, then the payload", l.name, p[i-1].name)
		}
		if l.level == levelOption && b.p.TCP == nil {
			return Built{}, fmt.Errorf("%s is a TCP option: write tcp{} before it", l.name)
		}
		if err := l.apply(b); err != nil {
			return Built{}, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	if b.p.Src().IsValid() != b.p.Dst().IsValid() || b.p.Src().Is4() != b.p.Dst().Is4() {
		return Built{}, fmt.Errorf("the probe is of another IP version than %v", env.Destination)
	}
	if err := b.p.Seal(); err != nil {
		return Built{}, err
	}
	if err := b.setProtocol(p); err != nil {
		return Built{}, err
	}
	b.built.Packet = b.p
	return b.built, nil
}

// setProtocol sets the protocol that the author of a probe has chosen.
func (b *build) setProtocol(p Probe) error {
	transport := slices.IndexFunc(p, func(l Layer) bool { return l.level == levelTransport })
	switch {
	case transport < 0 && b.protocol < 0:
		return errors.New("the probe has no TCP, UDP or ICMP: add one, or give ip{proto=NUMBER}")
	case b.protocol < 0:
	case transport < 0 && b.built.FixedID:
		return errors.New("nothing would tell its probes apart: leave out id, or add TCP, UDP or ICMP in place of proto")
	case transport < 0:
		b.p.V4.Protocol = uint8(b.protocol)
		b.p.V4.SetChecksum()
	case b.p.Protocol() != uint8(b.protocol):
		return fmt.Errorf("protocol %d cannot be %s's: leave out proto, or give the header by raw()", b.protocol, p[transport].name)
	}
	return nil
}

// String returns the layers' names.
func (p Probe) String() string {
	var names []string
	for _, l := range p {
		names = append(names, l.name)
	}
	return strings.Join(names, " / ")
}
