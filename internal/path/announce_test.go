package path_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// server is a host with two or three uplinks that accepts connections.
type server struct {
	t    *testing.T
	m    *path.Manager
	now  time.Time
	told []path.Announce
	// What was withdrawn, and the subflows that were ended, in the order in which that happened.
	taken []path.Action
}

func newServer(t *testing.T, r path.Rule) *server {
	s := &server{t: t, now: birth, m: path.New(path.Config{Policy: policy.Detours{Subflows: 1}, Rules: []path.Rule{r}})}
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("me2"), ip("me3"), ip("me6")}})
	for name, at := range map[string]string{"eth0": "me", "wwan0": "me2", "eth1": "me6"} {
		s.tell(path.DetourOffered{Detour: path.Detour{ID: path.DetourID(name), Kind: path.Uplink, Waypoint: name, Local: ip(at)}})
	}
	return s
}

func (s *server) tell(ev path.Event) {
	for _, a := range s.m.Handle(ev, s.now) {
		switch a := a.(type) {
		case path.Announce:
			s.told = append(s.told, a)
		case path.RemoveAddr, path.DestroySubflow:
			s.taken = append(s.taken, a)
		}
	}
}

func (s *server) accepts(token path.Token) {
	s.tell(path.ConnEstablished{Token: token, Local: netip.AddrPortFrom(ip("me"), 80), Remote: netip.AddrPortFrom(ip("web"), 5000), ServerSide: true})
}

// After a resync, accepted connections that have ended are forgotten, and those that exist are kept.
func TestResyncOfAccepted(t *testing.T) {
	s := newServer(t, path.Rule{Policy: policy.Mesh{Mode: policy.BackupMode}, Announce: true})
	s.accepts(1)
	s.accepts(2)
	s.tell(path.Resync{Accepted: []path.Token{2}})
	s.told = nil
	s.tell(path.DetourOffered{Detour: path.Detour{ID: "wlan0", Kind: path.Uplink, Waypoint: "wlan0", Local: ip("me3")}})
	s.run(time.Minute)
	if len(s.told) == 0 || slices.ContainsFunc(s.told, func(a path.Announce) bool { return a.Token != 2 }) {
		t.Errorf("announced: %+v", s.told)
	}
	door := path.Config{Policy: policy.Detours{Subflows: 1}, Rules: []path.Rule{{Policy: policy.Mesh{Mode: policy.BackupMode}, RefuseJoins: true}}}
	s.m = path.New(door)
	s.accepts(1)
	s.accepts(2)
	s.tell(path.Resync{Accepted: []path.Token{2}})
	for token := path.Token(1); token <= 2; token++ {
		refused := len(s.m.Handle(path.SubflowEstablished{Token: token, Local: netip.AddrPortFrom(ip("me"), 80), Remote: netip.AddrPortFrom(ip("web"), 5001)}, s.now)) > 0
		if refused != (token == 2) {
			t.Errorf("token %d: a join is refused: %v", token, refused)
		}
	}
}

// run lets time pass, with the ticks that the manager asks for.
func (s *server) run(d time.Duration) {
	end := s.now.Add(d)
	for at, ok := s.m.Next(); ok && !at.After(end); at, ok = s.m.Next() {
		s.now = at
		s.tell(path.Tick{})
	}
	s.now = end
}

// An announcement is repeated until a subflow comes up at the address, and at most eight times.
func TestAnnouncedUntilTaken(t *testing.T) {
	s := newServer(t, path.Rule{Announce: true, Policy: policy.Mesh{}})
	s.accepts(1)
	want := path.Announce{Token: 1, LocalID: 1, Local: ip("me2")} // not of the other family
	if !slices.Equal(s.told, []path.Announce{want}) {
		t.Fatalf("at once: %+v", s.told)
	}
	s.run(time.Second)
	if !slices.Equal(s.told, []path.Announce{want, want, want}) {
		t.Fatalf("after a second: %+v", s.told)
	}
	s.tell(path.SubflowEstablished{Token: 1, LocalID: 1, Local: netip.AddrPortFrom(ip("me2"), 80), Remote: netip.AddrPortFrom(ip("web"), 5001)})
	s.run(time.Hour)
	if len(s.told) != 3 {
		t.Errorf("after it was taken: %+v", s.told)
	}
	s.accepts(2)
	s.run(time.Hour)
	if len(s.told) != 3+8 {
		t.Errorf("%d times in vain", len(s.told)-3)
	}
	s.accepts(3)
	s.tell(path.ConnClosed{Token: 3})
	s.run(time.Hour)
	if len(s.told) != 3+8+1 {
		t.Errorf("a connection that ended is told: %+v", s.told)
	}
}

// An uplink that comes later is announced, too, with an id of its own. One that the policy does not list is not
// announced.
func TestAnnouncedLater(t *testing.T) {
	s := newServer(t, path.Rule{Announce: true, Policy: policy.Mesh{Uplinks: []string{"eth0", "wlan0"}}})
	s.accepts(1)
	if len(s.told) > 0 {
		t.Fatalf("told %+v", s.told)
	}
	s.tell(path.DetourOffered{Detour: path.Detour{ID: "w", Kind: path.Uplink, Waypoint: "wlan0", Local: ip("me3")}})
	if !slices.Equal(s.told, []path.Announce{{Token: 1, LocalID: 1, Local: ip("me3")}}) {
		t.Errorf("told %+v", s.told)
	}
	quiet := newServer(t, path.Rule{Policy: policy.Mesh{}})
	quiet.accepts(1)
	quiet.run(time.Hour)
	if len(quiet.told) > 0 {
		t.Errorf("without the rule: %+v", quiet.told)
	}
}

// When this host loses an announced address, the subflows there end, and the address is withdrawn eight times. When
// it comes back, it is announced again.
func TestWithdrawn(t *testing.T) {
	s := newServer(t, path.Rule{Announce: true, Policy: policy.Mesh{}})
	all := path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("me2"), ip("me3"), ip("me6")}}
	without := path.LocalAddrs{Addrs: []netip.Addr{ip("me"), ip("me3"), ip("me6")}}
	s.accepts(1)
	ends := path.SubflowEstablished{Token: 1, LocalID: 1, Local: netip.AddrPortFrom(ip("me2"), 80), Remote: netip.AddrPortFrom(ip("web"), 5001)}
	s.tell(ends)
	s.tell(without)
	removal := path.RemoveAddr{Token: 1, LocalID: 1, Local: netip.AddrPortFrom(ip("me"), 0)}
	end := path.DestroySubflow{Token: 1, Local: ends.Local, Remote: ends.Remote, IfOpen: true}
	if want := []path.Action{end, removal}; !slices.Equal(s.taken, want) {
		t.Fatalf("at once: %+v", s.taken)
	}
	s.run(time.Hour)
	if want := append([]path.Action{end}, slices.Repeat([]path.Action{removal}, 8)...); !slices.Equal(s.taken, want) {
		t.Fatalf("in all: %+v", s.taken)
	}
	s.accepts(2) // has nothing to withdraw
	s.run(time.Hour)
	if len(s.told) != 1 {
		t.Fatalf("announced %+v", s.told)
	}
	s.taken = nil
	s.tell(all)
	if want := []path.Announce{{Token: 1, LocalID: 1, Local: ip("me2")}, {Token: 2, LocalID: 1, Local: ip("me2")}}; !slices.Equal(s.told[1:], want) {
		t.Errorf("after it came back: %+v", s.told[1:])
	}
	s.run(100 * time.Millisecond)
	s.tell(without) // while the address is being announced
	s.tell(path.ConnClosed{Token: 1})
	s.run(time.Hour)
	removals := 0
	for _, a := range s.taken {
		if a == (path.RemoveAddr{Token: 2, LocalID: 1, Local: netip.AddrPortFrom(ip("me"), 0)}) {
			removals++
		}
	}
	if removals != 8 || len(s.told) != 3 {
		t.Errorf("%d withdrawals, announced %+v", removals, s.told)
	}
}
