package plan

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

const (
	fewestFaults, mostFaults = 5, 10
	// The pause between the beginnings of two faults, in seconds.
	shortestGap, longestGap = 0.5, 3.0
)

// Generate makes the plan of a seed.
func Generate(seed uint64) Plan {
	r := rand.New(rand.NewPCG(seed, 0xc4a05))
	p := Plan{Seed: seed, World: newWorld(r)}
	// Other worlds do not depend on these.
	p.World.addConverter(rand.New(rand.NewPCG(seed, 0xc0)))
	p.World.vary(rand.New(rand.NewPCG(seed, 0x6)))
	var kinds []Kind // each as often as it weighs
	for _, k := range Kinds(p.World) {
		kinds = append(kinds, slices.Repeat([]Kind{k}, max(1, rules[k].weight))...)
	}
	at := span{0, 1}.seconds(r)
	for range fewestFaults + r.IntN(mostFaults-fewestFaults+1) {
		f := newFault(r, kinds[r.IntN(len(kinds))], p.World)
		f.At = units.Duration(at)
		p.Faults = append(p.Faults, f)
		if f.Kind.Spoils() { // another one would find nothing to strike
			kinds = slices.DeleteFunc(kinds, Kind.Spoils)
		}
		at += span{shortestGap, longestGap}.seconds(r)
	}
	return p
}

func newFault(r *rand.Rand, kind Kind, w World) Fault {
	rule := rules[kind]
	targets := rule.targets(w)
	f := Fault{
		Kind: kind, Target: targets[r.IntN(len(targets))],
		For: units.Duration(rule.lasts.seconds(r)), Amount: rule.amount.draw(r),
	}
	if settings := rule.settings[f.Target]; len(settings) > 0 {
		f.Setting = settings[r.IntN(len(settings))]
	}
	return f
}

func newWorld(r *rand.Rand) World {
	w := World{
		Emulated: r.IntN(3) > 0, Coordinator: r.IntN(4) == 0, NAT: r.IntN(4) == 0, Checksums: r.IntN(3) > 0,
		Waypoints: 2 + r.IntN(2), Subflows: []int{2, 2, 3}[r.IntN(3)],
	}
	if r.IntN(2) == 0 {
		w.Liar = Lies()[r.IntN(len(Lies()))]
	}
	w.Kinds = newKinds(r, w.Liar)
	for _, kind := range []StreamKind{Download, Upload, Messages} {
		w.Streams = append(w.Streams, newStream(r, kind, 0))
	}
	short := []StreamKind{Download, Upload, Messages}[r.IntN(3)]
	w.Streams = append(w.Streams, newStream(r, short, span{1.5, 5}.seconds(r)))
	return w
}

// addConverter adds a converter to every third world that has no coordinator.
func (w *World) addConverter(r *rand.Rand) {
	if r.IntN(3) > 0 || w.Coordinator {
		return
	}
	w.Converter = ByProxy
	if !w.NAT && r.IntN(2) == 0 {
		w.Converter = ByGateway
	}
	for i, kind := range []StreamKind{Download, Upload, Messages} {
		s := newStream(r, kind, 0)
		s.Converted, s.Port = true, convertedPort+uint16(2*i)
		w.Streams = append(w.Streams, s)
	}
	s := newStream(r, Download, span{1.5, 5}.seconds(r))
	s.Converted, s.Port = true, convertedPort
	w.Streams = append(w.Streams, s)
}

// vary takes IPv4 from every third world that bears it, and has every eighth server take fewer subflows than by default.
func (w *World) vary(r *rand.Rand) {
	if r.IntN(3) == 0 && w.bearsIPv6() {
		w.IPv6, w.Kinds = true, slices.DeleteFunc(slices.Clone(w.Kinds), func(kind string) bool { return kind == inBand })
	}
	if r.IntN(8) == 0 {
		takes := r.IntN(2)
		w.ServerTakes = &takes
	}
}

// convertedPort is the first port of converted streams. Those of their twins lie between them.
const convertedPort = 9000

// ports are the servers' ports. On the last, dcol takes the beginning of the traffic for a
// TLS handshake.
var ports = []uint16{80, 8080, 443}

func newStream(r *rand.Rand, kind StreamKind, life time.Duration) Stream {
	rate := span{0.5e6, 2e6}.draw(r)
	if kind == Messages {
		rate = span{0.05e6, 0.3e6}.draw(r)
	}
	return Stream{Kind: kind, Port: ports[r.IntN(len(ports))], Rate: units.Rate(rate), Life: units.Duration(life)}
}

// newKinds draws the kinds of detours that a collective uses: often all of them, or the
// defaults. A waypoint that lies about addresses in tunnels needs tunnels.
func newKinds(r *rand.Rand, liar Lie) []string {
	tunnels := [][]string{{"wireguard", "in-band", "mapped"}, {"wireguard", "mapped"}, {"wireguard"}}
	if liar == ForeignAddress {
		return tunnels[r.IntN(len(tunnels))]
	}
	choices := slices.Concat(tunnels, [][]string{{"in-band", "mapped"}, {"in-band", "mapped"}, {"mapped"}, {"in-band"}, {"openvpn", "mapped"}})
	return choices[r.IntN(len(choices))]
}
