package client

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// A loaded waypoint is asked as the only one where no other is up, gives something and is not loaded.
func TestLoadedWaypointIsTheOnlyOne(t *testing.T) {
	bob := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}
	bob2 := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.8")}
	carol := detour.Via{Waypoint: "carol", Addr: netip.MustParseAddr("192.0.2.9")}
	carol6 := detour.Via{Waypoint: "carol", Addr: netip.MustParseAddr("2001:db8::9")}
	c, _ := toldClient(bob, bob2, carol, carol6)
	c.roster.using["bob"] = &usedWaypoint{peer: config.Peer{Name: "bob"}, vias: []detour.Via{bob, bob2}}
	c.roster.using["carol"] = &usedWaypoint{peer: config.Peer{Name: "carol"}, vias: []detour.Via{carol, carol6}}
	begin := time.Now()
	up := session.State{Up: true, Offers: []wire.Kind{wire.Mapped}}
	until := func(d time.Duration) session.State {
		s := up
		s.Load.Until = begin.Add(d)
		return s
	}
	closed := up
	closed.Closed = &session.Closed{Code: wire.SwitchedOff}
	changed := func(v detour.Via, s session.State) {
		c.sessionChanged(t.Context(), v, s)
		(<-c.inbox.calls)(begin)
	}
	want := func(when string, other bool) {
		t.Helper()
		if c.hasOther(bob, begin) != other {
			t.Errorf("%s: there is another: %v", when, !other)
		}
	}
	changed(bob, until(time.Minute))
	changed(bob2, up)
	want("its own other address", false)
	changed(carol6, up)
	want("another of the other family", false)
	changed(carol, until(time.Minute))
	want("another that is loaded", false)
	c.loadChanged(t.Context(), carol, session.Load{})
	(<-c.inbox.calls)(begin)
	want("another that is loaded no more", true)
	changed(carol, closed)
	want("another that is closed", false)
	changed(carol, until(-time.Second))
	want("another that was loaded", true)
	changed(carol, session.State{})
	want("another that is down", false)

	delete(c.roster.sessions, carol)
	c.loadChanged(t.Context(), carol, session.Load{Until: begin.Add(time.Minute)})
	(<-c.inbox.calls)(begin)
	if _, kept := c.roster.loaded[carol]; kept && c.hasOther(bob, begin) {
		t.Error("a waypoint that was left counts")
	}
}

// A waypoint that refuses because of its load is asked again within a minute, and for that server only it is not asked
// until then.
func TestLoadedRefusal(t *testing.T) {
	s := &waypointSession{}
	r := s.Refusal(&wire.Refusal{Code: wire.Loaded, RetryAfter: 300 * 24 * time.Hour})
	if r.For != loadedAtMost || r.All || r.Forbidden || r.Unanswered {
		t.Errorf("%+v", r)
	}
	if r := s.Refusal(&wire.Refusal{Code: wire.Loaded, RetryAfter: 5 * time.Second}); r.For != 5*time.Second {
		t.Errorf("%+v", r)
	}
}
