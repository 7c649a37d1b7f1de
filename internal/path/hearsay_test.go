package path_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// trails returns measurements of a waypoint towards networks that begin with these three bytes.
func trails(waypoint string, networks [][3]byte, loss, goodput float64) (list []path.Trail) {
	for _, n := range networks {
		list = append(list, path.Trail{
			Waypoint: waypoint, Network: netip.PrefixFrom(netip.AddrFrom4([4]byte{n[0], n[1], n[2], 0}), 24), At: birth,
			Trip: 20 * time.Millisecond, Loss: loss, Packets: path.EnoughPackets, Goodput: goodput, GoodputAt: birth,
		})
	}
	return list
}

var webNetwork = [3]byte{203, 0, 113}

// hearsay returns a Manager with waypoints, each with a mapping to one server.
func hearsay(seed uint64, known []path.Trail, waypoints []string) *path.Manager {
	return hearsayOf(policy.Detours{Subflows: 2}, seed, known, waypoints)
}

func hearsayOf(p policy.Policy, seed uint64, known []path.Trail, waypoints []string) *path.Manager {
	m := path.New(path.Config{
		Policy: p, ByWorth: true, Seed: seed,
		Memory: path.Memory{Addrs: []netip.Addr{ip("me")}, Trails: known}, BulkPorts: []uint16{80},
	})
	m.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, birth)
	for i, w := range waypoints {
		at := netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})
		m.Handle(path.WaypointMeasured{Waypoint: w, Addr: at, RTT: 10 * time.Millisecond}, birth)
		m.Handle(path.DetourOffered{Detour: path.Detour{
			ID: path.DetourID(w), Kind: path.Mapped, Waypoint: w, Remote: netip.AddrPortFrom(at, 4000), Server: netip.AddrPortFrom(ip("web"), 80),
		}}, birth)
	}
	return m
}

// takes returns the waypoint that a new connection takes.
func takes(m *path.Manager, token path.Token) string {
	if all := takesAll(m, token); len(all) > 0 {
		return all[0]
	}
	return ""
}

// takesAll returns the waypoints that a new connection takes.
func takesAll(m *path.Manager, token path.Token) (all []string) {
	local, server := netip.AddrPortFrom(ip("me"), uint16(20000+token)), netip.AddrPortFrom(ip("web"), 80)
	defer func() { m.Handle(path.ConnClosed{Token: token}, birth) }()
	for _, a := range m.Handle(path.ConnEstablished{Token: token, Local: local, Remote: server}, birth) {
		if c, ok := a.(path.CreateSubflow); ok {
			all = append(all, c.Waypoint)
		}
	}
	return all
}

// Whatever liars claim, connections that do not explore take what they would take without claims. Those that explore
// take a waypoint that was not measured, or what they would take.
func TestClaimsOrderOnlyWhatIsExplored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var waypoints []string
		var known []path.Trail
		measured := make(map[string]bool)
		for i := range rapid.IntRange(2, 6).Draw(t, "waypoints") {
			w := fmt.Sprint("w", i)
			waypoints = append(waypoints, w)
			if measured[w] = rapid.Bool().Draw(t, "measured"); measured[w] {
				known = append(known, trails(w, [][3]byte{webNetwork}, 0, rapid.Float64Range(1e6, 100e6).Draw(t, "goodput"))...)
			}
		}
		seed := rapid.Uint64().Draw(t, "seed")
		deaf, told := hearsay(seed, known, waypoints), hearsay(seed, known, waypoints)
		var all []claim.Heard
		for i := range rapid.IntRange(0, 9).Draw(t, "members") {
			h := claim.Heard{Member: fmt.Sprint("m", i), At: birth}
			for _, w := range waypoints {
				h.Claims = append(h.Claims, claim.Claim{
					Waypoint: w, Loss: claim.LossClass(rapid.Uint8Range(0, 5).Draw(t, "loss")), Goodput: claim.GoodputClass(rapid.Uint8Range(0, 7).Draw(t, "goodput")),
				})
			}
			all = append(all, h)
		}
		told.Handle(path.ClaimsHeard{Claims: all}, birth)
		for token := path.Token(1); token <= 64; token++ {
			without, with := takes(deaf, token), takes(told, token)
			switch {
			case without == "" || with == "":
				t.Fatalf("connection %d takes %q, and with claims %q", token, without, with)
			case without == with:
			case !told.Explores(token):
				t.Fatalf("connection %d does not explore and takes %s, but %s because of claims", token, without, with)
			case measured[with]:
				t.Fatalf("connection %d explores and takes %s because of claims, which was measured; without them %s", token, with, without)
			}
		}
	})
}

// Connections that explore are few.
func TestFewExplore(t *testing.T) {
	m, n := hearsay(1, nil, nil), 0
	for token := range path.Token(16000) {
		if m.Explores(token) {
			n++
		}
	}
	if n < 800 || n > 1200 {
		t.Errorf("%d of 16,000 connections explore", n)
	}
}

// A connection that explores takes the waypoint that others rate best. Then only this host's own measurements count.
func TestClaimsAreTried(t *testing.T) {
	waypoints := []string{"a", "b", "c", "d", "e"}
	m := hearsay(3, nil, waypoints)
	m.Handle(path.ClaimsHeard{Claims: []claim.Heard{
		{Member: "x", At: birth, Claims: []claim.Claim{{Waypoint: "c", Loss: 1, Goodput: 6}, {Waypoint: "d", Loss: 4, Goodput: 1}}},
	}}, birth)
	var tried []string
	for token := path.Token(1); token < 500; token++ {
		if m.Explores(token) {
			tried = append(tried, takes(m, token))
		}
	}
	if len(tried) < 10 || slices.ContainsFunc(tried, func(w string) bool { return w != "c" }) {
		t.Errorf("tried: %v", tried)
	}
	x := m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, birth)
	i := slices.IndexFunc(x.Candidates, func(c path.Candidate) bool { return c.Waypoint == "c" })
	if got := x.Candidates[i].Claimed; got.Goodput != 6 || got.Members != 1 || got.Proven {
		t.Errorf("why: %+v", got)
	}
}

// What a host shares does not depend on which networks it was measured towards, and needs three of them.
func TestSharedClaimsHideDestinations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		network := rapid.Custom(func(t *rapid.T) [3]byte {
			return [3]byte{rapid.ByteRange(1, 99).Draw(t, "net"), rapid.Byte().Draw(t, "net"), rapid.Byte().Draw(t, "net")}
		})
		n := rapid.IntRange(1, 6).Draw(t, "networks")
		draw := func() [][3]byte { return rapid.SliceOfNDistinct(network, n, n, rapid.ID).Draw(t, "towards") }
		loss, goodput := rapid.Float64Range(0, 0.1).Draw(t, "loss"), rapid.Float64Range(1, 1e9).Draw(t, "goodput")
		one := hearsay(1, trails("bob", draw(), loss, goodput), nil).Claims(birth)
		other := hearsay(1, trails("bob", draw(), loss, goodput), nil).Claims(birth)
		if !slices.Equal(one, other) {
			t.Fatalf("%+v, and towards other networks %+v", one, other)
		}
		if (len(one) > 0) != (n >= claim.ShareFrom) {
			t.Fatalf("%d networks: %+v", n, one)
		}
		if direct := hearsay(1, trails("", draw(), loss, goodput), nil).Claims(birth); len(direct) > 0 {
			t.Fatalf("the direct path is shared: %+v", direct)
		}
	})
}

// A host remembers whom it believes after a restart, also on another network. The claims must be heard again.
func TestBeliefIsRemembered(t *testing.T) {
	claims := path.ClaimsHeard{Claims: []claim.Heard{
		{Member: "mallory", At: birth, Claims: []claim.Claim{{Waypoint: "a", Loss: 4, Goodput: 1}, {Waypoint: "b", Loss: 1, Goodput: 6}}},
	}}
	server := netip.AddrPortFrom(ip("web"), 80)
	standing := func(m *path.Manager) claim.Hint {
		x := m.Explain(server, netip.Addr{}, birth)
		i := slices.IndexFunc(x.Candidates, func(c path.Candidate) bool { return c.Waypoint == "b" })
		return x.Candidates[i].Claimed
	}
	m := hearsay(1, trails("a", [][3]byte{webNetwork}, 0, 50e6), []string{"a", "b"})
	m.Handle(claims, birth)
	if h := standing(m); h.Wrong != 1 {
		t.Fatalf("a was measured: %+v", h)
	}
	memory := m.Memory()
	memory.Addrs = []netip.Addr{ip("me2")}
	next := path.New(path.Config{Policy: policy.Detours{Subflows: 2}, ByWorth: true, Memory: memory})
	next.Handle(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}}, birth)
	next.Handle(path.DetourOffered{Detour: path.Detour{ID: "b", Kind: path.InBand, Waypoint: "b", Remote: netip.AddrPortFrom(ip("bob"), 0)}}, birth)
	if h := standing(next); h != (claim.Hint{}) {
		t.Errorf("nothing was heard: %+v", h)
	}
	next.Handle(claims, birth)
	if h := standing(next); h.Wrong != 1 || h.Members != 0 {
		t.Errorf("mallory is believed again: %+v", h)
	}
}

// A host with a slow line does not disbelieve those that got more through a waypoint than it did.
func TestSlowLineRefutesNobody(t *testing.T) {
	for direct, wrong := range map[float64]int{2e6: 0, 100e6: 1} { // goodput of the direct path
		known := append(trails("a", [][3]byte{webNetwork}, 0, 2e6), trails("", [][3]byte{webNetwork}, 0, direct)...)
		m := hearsay(1, known, []string{"a"})
		m.Handle(path.ClaimsHeard{Claims: []claim.Heard{{Member: "fast", At: birth, Claims: []claim.Claim{{Waypoint: "a", Loss: 1, Goodput: 5}}}}}, birth)
		n := 0
		for _, v := range m.Memory().Verdicts {
			if !v.Agreed {
				n++
			}
		}
		if n != wrong {
			t.Errorf("%.0f Mbit/s directly, 2 through the waypoint: %d members were wrong, want %d", direct/1e6, n, wrong)
		}
	}
}
