package path_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/measure"
)

// together plays bulk traffic on the direct path, to which a detour is added in the middle, on this many connections.
// It returns what is then known of their bottlenecks, and the world. rates returns segments a second on the direct
// path and on the detour, for the nth connection, with and without the detour.
func together(t *testing.T, connections int, rates func(n int, detour bool) (direct, bob float64)) (path.Bottleneck, *selection) {
	t.Helper()
	paths := map[string]*pathWorth{"": good(), "bob": good()}
	s := newSelection(t, paths)
	for n := range connections {
		s.connect()
		paths[""].rate, _ = rates(n, false)
		s.bulk(8 * time.Second)
		s.offer("bob")
		if s.over("bob") == nil {
			t.Fatalf("connection %d: the detour is not taken: %q", n, s.log)
		}
		paths[""].rate, paths["bob"].rate = rates(n, true)
		s.bulk(8 * time.Second)
		s.tell(path.DetourWithdrawn{ID: "bob"})
	}
	s.offer("bob")
	x := s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now)
	if len(x.Candidates) != 1 || len(x.Candidates[0].Bottlenecks) != 1 || x.Candidates[0].Bottlenecks[0].With != "" {
		t.Fatalf("candidates %+v", x.Candidates)
	}
	return x.Candidates[0].Bottlenecks[0], s
}

// sharedRates has 800 segments a second for both paths.
func sharedRates(_ int, detour bool) (direct, bob float64) {
	if detour {
		return 430, 370
	}
	return 800, 0
}

// For bulk traffic, a detour that adds nothing comes after one that was not measured.
func TestSharedBottleneckComesLast(t *testing.T) {
	for _, c := range []struct {
		rates func(int, bool) (float64, float64)
		first string
	}{
		{sharedRates, "carol"},
		{func(int, bool) (float64, float64) { return 800, 1200 }, "bob"},
	} {
		_, s := together(t, 4, c.rates)
		s.offer("carol")
		x := s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now)
		if len(x.Candidates) != 2 || !x.Candidates[0].Taken || x.Candidates[0].Waypoint != c.first {
			t.Errorf("want %s first, have %+v", c.first, x.Candidates)
		}
	}
}

func TestBottlenecks(t *testing.T) {
	apart := func(int, bool) (float64, float64) { return 800, 500 }
	for name, c := range map[string]struct {
		connections int
		rates       func(n int, detour bool) (direct, bob float64)
		want        measure.Relation
	}{
		"one bottleneck":             {4, sharedRates, measure.Shared},
		"one bottleneck, seen twice": {2, sharedRates, measure.Unknown},
		"bottlenecks of their own":   {4, apart, measure.Apart},
		"others' traffic comes by chance when the detour does": {4, func(n int, detour bool) (float64, float64) {
			if detour && n%2 == 0 {
				return 300, 500
			}
			return 800, 500
		}, measure.Unknown},
		"others' traffic takes some of the shared bottleneck": {4, func(n int, detour bool) (float64, float64) {
			if detour {
				return []float64{430, 100, 700, 250}[n], 370
			}
			return 800, 0
		}, measure.Unknown},
		"others' traffic ends when the detour comes": {4, func(n int, detour bool) (float64, float64) {
			if detour {
				return []float64{430, 800, 430, 900}[n], 370
			}
			return 800, 0
		}, measure.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _ := together(t, c.connections, c.rates); got.Relation != c.want || got.Pairs != c.connections {
				t.Errorf("%+v, want %v of %d pairs", got, c.want, c.connections)
			}
		})
	}
}

// Where bottlenecks of very many pairs are known, a new pair takes the place of the oldest.
func TestOldestBottleneckIsForgotten(t *testing.T) {
	m, now := path.New(path.Config{ByWorth: true}), birth
	server := func(n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), 1}), 80)
	}
	for n := range path.MostSharings + 1 {
		now = now.Add(time.Second)
		m.AddSharing("bob", server(n), now)
	}
	if is, pairs := m.Sharing("bob", server(path.MostSharings)); is == (measure.Shares{}) || pairs > path.MostSharings {
		t.Errorf("of the latest pair, %+v is known; %d pairs are known", is, pairs)
	}
	if is, _ := m.Sharing("bob", server(0)); is != (measure.Shares{}) {
		t.Errorf("of the oldest pair, %+v is still known", is)
	}
}
