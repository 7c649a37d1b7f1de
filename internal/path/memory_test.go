package path_test

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// lossyMemory returns the memory of a Manager after bob lost much.
func lossyMemory(t *testing.T) (path.Memory, time.Time) {
	t.Helper()
	bad := good()
	bad.loss = 0.05
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": bad, "carol": good()})
	s.offer("bob")
	s.connect()
	s.bulk(4 * time.Second) // else it tries carol first
	s.offer("carol")
	s.bulk(36 * time.Second)
	s.want("with the loss", "join bob", "demote bob", "join carol", "end bob")
	return s.m.Memory(), s.now
}

// recalling returns a selection whose Manager has a memory.
func recalling(t *testing.T, memory path.Memory, now time.Time, addrs ...netip.Addr) *selection {
	t.Helper()
	s := &selection{
		t: t, start: now, now: now, paths: map[string]*pathWorth{"": good(), "bob": good(), "carol": good()}, random: rand.New(rand.NewPCG(1, 2)), port: 50000,
		m: path.New(path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true, Seed: 1, Memory: memory}),
	}
	s.tell(path.LocalAddrs{Addrs: addrs})
	return s
}

// The next Manager avoids what lost much, unless the host is on another network, or it was long ago.
func TestMemory(t *testing.T) {
	memory, now := lossyMemory(t)
	bob := func(trail path.Trail) bool { return trail.Waypoint == "bob" && trail.Shunned.After(now) }
	if !slices.ContainsFunc(memory.Trails, bob) || !slices.Equal(memory.Addrs, []netip.Addr{ip("me")}) {
		t.Fatalf("it remembers %+v", memory)
	}
	avoids := func(s *selection) bool {
		for range 20 { // otherwise at random
			s.offer("bob", "carol")
			s.connect()
			if s.over("bob") != nil {
				return false
			}
		}
		return true
	}
	s := recalling(t, memory, now, ip("me"))
	if diff := cmp.Diff(memory, s.m.Memory(), cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	if !avoids(s) {
		t.Error("bob is used again at once")
	}
	if avoids(recalling(t, memory, now, ip("me2"))) {
		t.Error("what was measured on another network counts")
	}
	if avoids(recalling(t, memory, now.Add(2*time.Hour), ip("me"))) {
		t.Error("bob is avoided for ever")
	}
	if later := recalling(t, memory, now.Add(48*time.Hour), ip("me")).m.Memory(); len(later.Trails) > 0 {
		t.Errorf("after two days it still knows %+v", later)
	}
}

// Measurements that cannot be real are left out.
func TestMemoryOfNonsense(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	fine := path.Trail{Waypoint: "bob", Network: netip.MustParsePrefix("203.0.113.0/24"), At: now.Add(-time.Minute), Trip: time.Second, Loss: 0.5}
	for name, change := range map[string]func(*path.Trail){
		"no network":             func(t *path.Trail) { t.Network = netip.Prefix{} },
		"one address":            func(t *path.Trail) { t.Network = netip.MustParsePrefix("203.0.113.1/32") },
		"everything":             func(t *path.Trail) { t.Network = netip.MustParsePrefix("0.0.0.0/0") },
		"bits after the length":  func(t *path.Trail) { t.Network = netip.MustParsePrefix("203.0.113.1/24") },
		"in the future":          func(t *path.Trail) { t.At = now.Add(time.Second) },
		"long ago":               func(t *path.Trail) { t.At = time.Time{} },
		"negative round trip":    func(t *path.Trail) { t.Trip = -1 },
		"endless round trip":     func(t *path.Trail) { t.Trip = time.Hour },
		"more lost than sent":    func(t *path.Trail) { t.Loss = 1.1 },
		"less than nothing lost": func(t *path.Trail) { t.Loss = -0.1 },
		"avoided for a year":     func(t *path.Trail) { t.Shunned = now.Add(365 * 24 * time.Hour) },
		"negative count":         func(t *path.Trail) { t.Times = -1 },
		"too many packets":       func(t *path.Trail) { t.Packets = 1 << 60 },
		"negative goodput":       func(t *path.Trail) { t.Goodput = -1 },
		"no number":              func(t *path.Trail) { t.Goodput = math.NaN() },
		"endless goodput":        func(t *path.Trail) { t.Goodput = math.Inf(1) },
		"goodput of the future":  func(t *path.Trail) { t.GoodputAt = now.Add(time.Second) },
		"unknown traffic":        func(t *path.Trail) { t.Kind = 7 },
	} {
		trail := fine
		change(&trail)
		s := recalling(t, path.Memory{Addrs: []netip.Addr{ip("me")}, Trails: []path.Trail{trail, fine}}, now, ip("me"))
		if got := s.m.Memory().Trails; len(got) != 1 || got[0] != fine {
			t.Errorf("%s: %+v", name, got)
		}
	}
	var many path.Memory
	many.Addrs = []netip.Addr{ip("me")}
	for i := range 10000 {
		trail := fine
		trail.Network = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(i >> 8), byte(i), 0}), 24)
		many.Trails = append(many.Trails, trail)
	}
	if n := len(recalling(t, many, now, ip("me")).m.Memory().Trails); n == 0 || n > 4096 {
		t.Errorf("of 10,000 trails %d are taken over", n)
	}
}
