package path_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// However many connections begin, the tries of an hour are bounded. Connections beyond the bound take the same as
// others.
func TestTriesAreBounded(t *testing.T) {
	known := append(trails("", [][3]byte{webNetwork}, 0, 5e6), trails("a", [][3]byte{webNetwork}, 0, 20e6)...)
	m := hearsay(5, known, []string{"a", "b"})
	explorers, tried := 0, 0
	for token := path.Token(1); token <= 5000; token++ {
		switch w := takes(m, token); {
		case w == "b":
			tried++
			if !m.Explores(token) {
				t.Fatalf("connection %d does not explore and takes what was not measured", token)
			}
			fallthrough
		case m.Explores(token):
			explorers++
		}
	}
	if explorers <= path.MostTries || tried != path.MostTries {
		t.Errorf("%d of %d connections that explore took what was not measured, at most %d should", tried, explorers, path.MostTries)
	}
	if e := m.Snapshot(birth).Exploring; e.Tries != path.MostTries || !e.Spent || e.Renews != birth.Add(path.ExploreEvery) {
		t.Errorf("%+v", e)
	}
	if e := m.Snapshot(birth.Add(path.ExploreEvery)).Exploring; e != (path.Exploring{}) {
		t.Errorf("an hour later: %+v", e)
	}
	if e := m.Snapshot(birth.Add(-time.Minute)).Exploring; e != (path.Exploring{}) {
		t.Errorf("a clock that was set back: %+v", e)
	}
}

// What tries carry is counted. Too much of it ends the tries of the hour.
func TestExploredBytesAreBounded(t *testing.T) {
	m := hearsay(5, trails("a", [][3]byte{webNetwork}, 0, 20e6), []string{"a", "b"})
	token := path.Token(1)
	for !m.Explores(token) {
		token++
	}
	local, server := netip.AddrPortFrom(ip("me"), 20000), netip.AddrPortFrom(ip("web"), 80)
	own, bytes, now := netip.AddrPortFrom(ip("me"), 30000), uint64(path.MostExplored/10), birth
	var to netip.AddrPort
	for _, a := range append([]path.Action(nil), m.Handle(path.ConnEstablished{Token: token, Local: local, Remote: server}, now)...) {
		if c, ok := a.(path.CreateSubflow); ok && c.Waypoint == "b" {
			to = c.Remote
			m.Handle(path.SubflowRequested{Token: token, LocalID: c.LocalID, Local: own}, now)
			m.Handle(path.SubflowEstablished{Token: token, LocalID: c.LocalID, Local: own, Remote: to}, now)
		}
	}
	if !to.IsValid() {
		t.Fatal("nothing was tried")
	}
	for i := range uint64(20) {
		now = now.Add(time.Second)
		m.Handle(path.Measured{Samples: []path.Sample{{Token: token, Local: own, Remote: to, BytesReceived: bytes * (i + 1), MinRTT: time.Millisecond}}}, now)
		e := m.Snapshot(now).Exploring
		if want := bytes * min(i+1, 9); e.Bytes != want {
			t.Fatalf("after %d s: %+v, want %d bytes", i+1, e, want)
		}
	}
	if e := m.Snapshot(now).Exploring; e.Spent || e.Tries != 1 {
		t.Fatalf("nine tenths are used: %+v", e)
	}
}

// If all waypoints lose much, almost nothing goes through them, and they are rarely tried again.
func TestNearlyNothingIsExploredWhenAllAreBad(t *testing.T) {
	bad := func() *pathWorth { return &pathWorth{trip: 40 * time.Millisecond, rate: 800, loss: 0.05} }
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": bad(), "carol": bad(), "dave": bad()})
	s.offer("bob", "carol", "dave")
	var total, detours uint64
	hour := func() (tries int) {
		total, detours = 0, 0
		for range 30 { // a bulk connection every two minutes
			s.connect()
			s.bulk(8 * time.Second)
			for _, c := range s.subflows {
				total += c.data
				if c.waypoint != "" {
					detours += c.data
				}
			}
			s.log = nil
			s.now = s.now.Add(112 * time.Second)
			tries = max(tries, s.m.Snapshot(s.now).Exploring.Tries)
		}
		return tries
	}
	for range 3 {
		hour()
	}
	tries := hour()
	share := float64(detours) / float64(total)
	t.Logf("in the fourth hour %d tries, %.2f %% of the data through waypoints", tries, 100*share)
	if tries > 10 || share > 0.01 {
		t.Errorf("in the fourth hour %d tries, %.2f %% of the data through waypoints; want at most 10 and 1 %%", tries, 100*share)
	}
}

// A connection that explores takes one detour that was not measured. Its other detours are the best known ones.
func TestOneSlotIsForTheTry(t *testing.T) {
	known := append(trails("", [][3]byte{webNetwork}, 0, 5e6), trails("a", [][3]byte{webNetwork}, 0, 20e6)...)
	known = append(append(known, trails("b", [][3]byte{webNetwork}, 0, 18e6)...), trails("c", [][3]byte{webNetwork}, 0, 2e6)...)
	m := hearsayOf(policy.Detours{Subflows: 4}, 5, known, []string{"a", "b", "c", "x", "y", "z"})
	explorers := 0
	for token := path.Token(1); token <= 500; token++ {
		taken := takesAll(m, token)
		unknown := 0
		for _, w := range taken {
			switch w {
			case "x", "y", "z":
				unknown++
			case "c":
				t.Errorf("connection %d takes the poor one: %v", token, taken)
			}
		}
		// Without a try, a waypoint that was not measured counts as being as good as the direct path: better than c.
		if m.Explores(token) {
			explorers++
		}
		if len(taken) != 3 || unknown != 1 || !slices.Contains(taken, "a") || !slices.Contains(taken, "b") {
			t.Errorf("connection %d, explores %v: %v", token, m.Explores(token), taken)
		}
	}
	if explorers < 10 {
		t.Errorf("%d explore", explorers)
	}
	poor := policy.Detours{Subflows: 3}
	m = hearsayOf(poor, 5, known, []string{"a", "b", "x", "y", "z"})
	for token := path.Token(1); token <= 500; token++ {
		unknown := 0
		for _, w := range takesAll(m, token) {
			if w != "a" && w != "b" {
				unknown++
			}
		}
		if want := map[bool]int{true: 1}[m.Explores(token)]; unknown != want {
			t.Errorf("connection %d takes %d that were not measured, want %d", token, unknown, want)
		}
	}
}

// A try that shows a poor detour ends once the detour is measured, also on a connection that lasts for hours.
func TestPoorTryIsLeft(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 1))
	for i := range networks(10) {
		good := 12 + 20*random.Float64()
		ways := map[string]*way{
			"":      wayOf(randomTrip(random), randomLink(random, 4)),
			"bob":   wayOf(randomTrip(random), randomLink(random, good*(0.1+0.4*random.Float64()))),
			"carol": wayOf(randomTrip(random), randomLink(random, good)),
		}
		f := newFluid(t, i, ways, nil)
		f.offer("carol")
		f.close(f.warm())
		f.offer("bob")
		for !f.m.Explores(f.token + 1) {
			f.token++
		}
		d := f.connect(0)
		if d.over("bob") == nil {
			t.Fatalf("nothing is tried: %v", d.log)
		}
		f.run(20 * time.Second)
		if d.over("carol") == nil {
			t.Errorf("of %.1f Mbit/s, %.1f: %v", ways["carol"].links[0].rate/1e6, ways["bob"].links[0].rate/1e6, d.log)
		}
		n := len(d.log)
		f.run(3 * time.Minute)
		if len(d.log) > n {
			t.Errorf("afterwards: %v", d.log[n:])
		}
	}
}
