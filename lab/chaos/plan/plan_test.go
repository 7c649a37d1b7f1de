package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Every seed gives a plan that can be carried out, always the same one, and that
// survives being stored.
func TestGenerate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		p := Generate(seed)
		if err := p.Check(); err != nil {
			t.Fatalf("%v\n%v", err, p)
		}
		if n := len(p.Faults); n < fewestFaults || n > mostFaults {
			t.Fatalf("%d faults", n)
		}
		if diff := cmp.Diff(p, Generate(seed)); diff != "" {
			t.Fatalf("another plan of the same seed:\n%s", diff)
		}
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var read Plan
		if err := json.Unmarshal(data, &read); err != nil {
			t.Fatal(err)
		}
		if read.String() != p.String() {
			t.Fatalf("read back it is\n%v, was\n%v", read, p)
		}
	})
}

// In some hundred sequences every kind of fault strikes, in worlds of every sort.
func TestGenerateCoversAll(t *testing.T) {
	kinds, lies, sorts, entrances := map[Kind]int{}, map[Lie]int{}, map[string]int{}, map[Entrance]int{}
	without4, takes, settings := 0, map[int]int{}, map[string]int{}
	for seed := range uint64(300) {
		p := Generate(seed)
		lies[p.World.Liar]++
		entrances[p.World.Converter]++
		sorts[fmt.Sprint(p.World.Emulated, p.World.NAT, p.World.Coordinator, p.World.Checksums)]++
		for _, f := range p.Faults {
			kinds[f.Kind]++
			settings[f.Setting]++
		}
		if p.World.IPv6 {
			without4++
		}
		if n := p.World.ServerTakes; n != nil {
			takes[*n]++
		}
	}
	for kind := range rules {
		if kinds[kind] < 10 {
			t.Errorf("%s struck %d times", kind, kinds[kind])
		}
	}
	for _, lie := range Lies() {
		if lies[lie] == 0 {
			t.Errorf("nobody told the lie %q", lie)
		}
	}
	for _, e := range []Entrance{"", ByProxy, ByGateway} {
		if entrances[e] < 10 {
			t.Errorf("%d worlds have the entrance %q to a converter", entrances[e], e)
		}
	}
	for _, setting := range slices.Concat(ofEnds, ofFilters) {
		if settings[setting] == 0 {
			t.Errorf("%s was never set", setting)
		}
	}
	if without4 < 20 || takes[0] < 5 || takes[1] < 5 {
		t.Errorf("%d worlds without IPv4; servers that take fewer subflows: %v", without4, takes)
	}
	if len(sorts) != 16 {
		t.Errorf("%d sorts of worlds of 16: %v", len(sorts), sorts)
	}
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Plan)
		words  string
	}{
		"no waypoint":     {func(p *Plan) { p.World.Waypoints = 0 }, "waypoints must be 1 to 4"},
		"no streams":      {func(p *Plan) { p.World.Streams = nil }, "at least one stream"},
		"unknown kind":    {func(p *Plan) { p.Faults[0].Kind = "rain" }, `"rain" is unknown`},
		"wrong target":    {func(p *Plan) { p.Faults[0] = Fault{Kind: DropTCP, Target: Access} }, "target must be one of"},
		"cannot be":       {func(p *Plan) { p.World.Emulated = false; p.Faults[0] = Fault{Kind: LinkLoss, Target: Access} }, "cannot happen"},
		"wrong order":     {func(p *Plan) { p.Faults[1].At = p.Faults[0].At - 1 }, "before the one"},
		"no converter":    {func(p *Plan) { p.World.Converter, p.World.Streams[0].Converted = "", true }, "there is no converter"},
		"unknown way in":  {func(p *Plan) { p.World.Converter = "door" }, `not "door"`},
		"coordinator too": {func(p *Plan) { p.World.Converter, p.World.Coordinator = ByProxy, true }, "no coordinator"},
		"gateway and NAT": {func(p *Plan) { p.World.Converter, p.World.NAT, p.World.Coordinator = ByGateway, true, false }, "behind no NAT"},
		"IPv6 and NAT":    {func(p *Plan) { p.World.IPv6, p.World.NAT = true, true }, "without IPv4"},
		"takes too few":   {func(p *Plan) { n := -1; p.World.ServerTakes = &n }, "takes 0 or more"},
		"no such setting": {func(p *Plan) { p.Faults[0] = Fault{Kind: Sysctl, Target: Busy, Setting: "net.ipv4.ip_forward=0"} }, "setting must be one of"},
		"unknown lie":     {func(p *Plan) { p.World.Liar = "weather" }, "liar must be one of"},
		"too many detour": {func(p *Plan) { p.World.Subflows = 9 }, "subflows must be"},
	} {
		p := Generate(1)
		p.World.Streams = slices.Clone(p.World.Streams)
		c.change(&p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v, want words %q", name, err, c.words)
		}
	}
}

// Shrinking finds the few faults that a failure needs, wherever they are.
func TestShrink(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Generate(rapid.Uint64().Draw(t, "seed"))
		needed := rapid.SliceOfNDistinct(rapid.IntRange(0, len(p.Faults)-1), 1, 3, rapid.ID[int]).Draw(t, "needed")
		var want []Fault
		for i, f := range p.Faults {
			if slices.Contains(needed, i) {
				want = append(want, f)
			}
		}
		fails := func(p Plan) (bool, error) {
			for _, f := range want {
				if !slices.Contains(p.Faults, f) {
					return false, nil
				}
			}
			return true, nil
		}
		if diff := cmp.Diff(want, Shrink(p, fails).Faults); diff != "" {
			t.Fatalf("shrunk to other faults:\n%s", diff)
		}
	})
}

// When time is up the smallest plan so far is what there is.
func TestShrinkEnds(t *testing.T) {
	p := Generate(5)
	tries := 0
	got := Shrink(p, func(Plan) (bool, error) {
		if tries++; tries > 1 {
			return false, errors.New("time is up")
		}
		return true, nil
	})
	if len(got.Faults) >= len(p.Faults) || tries != 2 {
		t.Errorf("%d faults of %d left after %d tries", len(got.Faults), len(p.Faults), tries)
	}
}
