package path_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/policy"
)

func addresses(list ...string) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// atHome are the addresses of a host whose uplink has 10.0.0.1 and an IPv6 /64.
func atHome() path.LocalAddrs {
	return path.LocalAddrs{
		Addrs:   addresses("127.0.0.1", "::1", "10.0.0.1", "2001:db8::1", "fe80::1"),
		Network: addresses("10.0.0.1", "10.0.0.254", "2001:db8::", "fe80::ff"),
	}
}

// settled returns a selection on the network at. It has measured carol, and bob says that he is loaded.
func settled(t *testing.T, at path.LocalAddrs) *selection {
	t.Helper()
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good()})
	s.tell(at)
	s.offer("carol")
	s.connect()
	s.bulk(20 * time.Second)
	s.offer("bob")
	s.tell(path.WaypointLoaded{Waypoint: "bob", Addr: ip("bob"), Until: s.now.Add(time.Minute)})
	if !s.knowsCarol() || !s.knowsLoad() {
		t.Fatal("nothing was learned")
	}
	return s
}

// knowsCarol reports whether carol counts as measured.
func (s *selection) knowsCarol() bool {
	for _, c := range s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now).Candidates {
		if c.Waypoint == "carol" && !c.Known.At.IsZero() {
			return true
		}
	}
	return false
}

// knowsLoad reports whether bob counts as loaded.
func (s *selection) knowsLoad() bool {
	for _, c := range s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now).Candidates {
		if c.Waypoint == "bob" && c.Reason.Cause == policy.CandidateLoaded {
			return true
		}
	}
	return false
}

// What was learned outlives changes of addresses that do not lead to the Internet, and the time without a network.
func TestSameNetwork(t *testing.T) {
	for name, change := range map[string]func(*path.LocalAddrs){
		"the address of a bridge":  func(l *path.LocalAddrs) { l.Addrs = append(l.Addrs, netip.MustParseAddr("172.17.0.1")) },
		"a link-local address":     func(l *path.LocalAddrs) { l.Addrs = append(l.Addrs, netip.MustParseAddr("fe80::2")) },
		"a temporary address":      func(l *path.LocalAddrs) { l.Addrs = append(l.Addrs, netip.MustParseAddr("2001:db8::1234")) },
		"no network for some time": func(l *path.LocalAddrs) { *l = path.LocalAddrs{Addrs: addresses("127.0.0.1", "172.17.0.1")} },
	} {
		s := settled(t, atHome())
		other := atHome()
		change(&other)
		for _, at := range []path.LocalAddrs{other, atHome()} {
			s.tell(at)
			if !s.knowsCarol() || !s.knowsLoad() {
				t.Errorf("%s: with %v, it knows carol: %v, the load: %v", name, at.Addrs, s.knowsCarol(), s.knowsLoad())
			}
		}
	}
	alone := path.LocalAddrs{Addrs: addresses("127.0.0.1", "10.0.0.1", "2001:db8::1")} // it never had a way to the Internet
	s := settled(t, alone)
	alone.Addrs = append(alone.Addrs, addresses("fe80::2", "2001:db8::1234")...)
	if s.tell(alone); !s.knowsCarol() || !s.knowsLoad() {
		t.Errorf("without any way to the Internet: it knows carol: %v, the load: %v", s.knowsCarol(), s.knowsLoad())
	}
}

// What was learned does not count on another network. Measurements count again when the host comes back.
func TestOtherNetwork(t *testing.T) {
	for name, change := range map[string]func(*path.LocalAddrs){
		"another address":            func(l *path.LocalAddrs) { l.Network[0] = netip.MustParseAddr("10.7.0.1") },
		"another router":             func(l *path.LocalAddrs) { l.Network[1] = netip.MustParseAddr("10.0.0.253") },
		"another IPv6 network":       func(l *path.LocalAddrs) { l.Network[2] = netip.MustParseAddr("2001:db8:7::") },
		"another router of IPv6":     func(l *path.LocalAddrs) { l.Network[3] = netip.MustParseAddr("fe80::fe") },
		"a second uplink":            func(l *path.LocalAddrs) { l.Network = append(l.Network, addresses("10.8.0.1", "10.8.0.254")...) },
		"another uplink comes first": func(l *path.LocalAddrs) { l.Network = append(l.Network[2:], l.Network[:2]...) },
	} {
		s := settled(t, atHome())
		before := s.m.Memory()
		away := atHome()
		change(&away)
		s.tell(away)
		if s.knowsCarol() || s.knowsLoad() {
			t.Errorf("%s: it knows carol: %v, the load: %v", name, s.knowsCarol(), s.knowsLoad())
		}
		s.tell(path.LocalAddrs{Addrs: addresses("127.0.0.1")}) // on the way
		s.tell(away)
		if s.knowsCarol() {
			t.Errorf("%s: after a pause, it knows carol", name)
		}
		if s.tell(atHome()); !s.knowsCarol() || s.knowsLoad() {
			t.Errorf("%s: back again, it knows carol: %v, the load: %v", name, s.knowsCarol(), s.knowsLoad())
		}
		same := cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})
		if diff := cmp.Diff(before, s.m.Memory(), same); diff != "" {
			t.Errorf("%s: back again: %s", name, diff)
		}
	}
}

// What an earlier Manager measured is not lost if the host is on no network yet, or on another one where nothing was
// measured. It is forgotten after a day.
func TestMemoryOfAnotherNetwork(t *testing.T) {
	memory, now := lossyMemory(t)
	memory.Addrs = atHome().Network
	memory.Verdicts = []claim.Verdict{{Member: "mallory", Waypoint: "bob", At: now}}
	away := path.LocalAddrs{Addrs: addresses("10.7.0.1"), Network: addresses("10.7.0.1", "10.7.0.254")}
	same := cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})
	for name, at := range map[string]path.LocalAddrs{
		"no addresses yet": {}, "only a bridge": {Addrs: addresses("127.0.0.1", "172.17.0.1")}, "another network": away,
	} {
		s := recalling(t, memory, now)
		for range 2 {
			s.tell(at)
			if diff := cmp.Diff(memory, s.m.Memory(), same); diff != "" {
				t.Errorf("%s: what is saved: %s", name, diff)
			}
		}
		if s.offer("bob"); at.Network != nil && s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now).Candidates[0].Known.At.After(time.Time{}) {
			t.Errorf("%s: it counts there", name)
		}
		s.tell(atHome())
		if diff := cmp.Diff(memory, s.m.Memory(), same); diff != "" {
			t.Errorf("%s: at home: %s", name, diff)
		}
	}
	s := recalling(t, memory, now)
	s.tell(away)
	s.offer("carol")
	s.connect()
	s.bulk(20 * time.Second)
	if got := s.m.Memory(); !slices.Equal(got.Addrs, away.Network) {
		t.Errorf("what was measured on the other network is not saved: %+v", got)
	}
	s = recalling(t, memory, now)
	s.tell(away)
	s.now = s.now.Add(25 * time.Hour)
	if s.tell(path.Tick{}); len(s.m.Memory().Trails) > 0 {
		t.Errorf("after a day it still knows %+v", s.m.Memory())
	}
}

// Failures are forgiven when the host has lost its network or joined one, even the same as before. A container's
// address forgives none.
func TestFailuresAreForgivenWithANetwork(t *testing.T) {
	s := newSelection(t, map[string]*pathWorth{"": good(), "bob": good()})
	s.tell(atHome())
	s.offer("bob")
	rests := func() bool { return s.m.Snapshot(s.now).Detours[0].Failures > 0 }
	local, server := netip.AddrPortFrom(ip("me"), 5000), netip.AddrPortFrom(ip("web"), 80)
	for _, a := range s.m.Handle(path.ConnEstablished{Token: 1, Local: local, Remote: server}, s.now) {
		if create, ok := a.(path.CreateSubflow); ok {
			s.m.Handle(path.CreateFailed{Token: 1, LocalID: create.LocalID, Err: errors.New("network is unreachable")}, s.now)
		}
	}
	s.now, _ = s.m.Next()
	s.m.Handle(path.Tick{}, s.now)
	if !rests() {
		t.Fatal("the detour does not rest after its failure")
	}
	container := atHome()
	container.Addrs = append(container.Addrs, addresses("172.17.0.1", "fe80::2")...)
	if s.m.Handle(container, s.now); !rests() {
		t.Error("a container's address forgives the failure")
	}
	s.m.Handle(path.LocalAddrs{Addrs: addresses("127.0.0.1")}, s.now)
	if s.m.Handle(atHome(), s.now); rests() {
		t.Error("after the network was lost, the failure still counts")
	}
}

// When a connection's own address comes back, the direct path is tried again at once, although the host's network has
// not changed.
func TestOwnAddressComesBack(t *testing.T) {
	m, now := path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), birth
	with, without := atHome(), atHome()
	with.Addrs = append(with.Addrs, ip("me2")) // of an interface without a default route
	local, server := netip.AddrPortFrom(ip("me2"), 5000), netip.AddrPortFrom(ip("web"), 80)
	failures := 0
	var last path.CreateSubflow
	handle := func(ev path.Event) {
		for _, a := range slices.Clone(m.Handle(ev, now)) {
			if create, ok := a.(path.CreateSubflow); ok {
				failures, last = failures+1, create
				m.Handle(path.CreateFailed{Token: 1, LocalID: create.LocalID, Err: errors.New("network is unreachable")}, now)
			}
		}
	}
	handle(with)
	handle(path.ConnEstablished{Token: 1, Local: local, Remote: server})
	handle(without)
	handle(path.SubflowClosed{Token: 1, Local: local, Remote: server, Err: errors.New("timed out")})
	for failures < 5 {
		next, ok := m.Next()
		if !ok || next.Sub(birth) > time.Minute {
			t.Fatalf("after %v there were %d attempts", now.Sub(birth), failures)
		}
		now = next
		handle(path.Tick{})
	}
	now, _ = m.Next()
	handle(path.Tick{}) // it judges the last failure
	if handle(with); failures != 6 || !last.Direct || last.Local != ip("me2") {
		t.Errorf("the address is back: %d attempts, the last %+v", failures, last)
	}
}
