package path_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/budget"
)

const megabyte = 1_000_000

// limited begins a selection with budgets. All waypoints are measured, so that none is tried.
func limited(t *testing.T, limits budget.Limits) *selection {
	t.Helper()
	return newSelectionWith(t, map[string]*pathWorth{"": good(), "bob": good(), "carol": good()}, func(c *path.Config) {
		c.Budget = limits
		at, network := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), netip.MustParsePrefix("203.0.113.0/24")
		c.Memory.Addrs = []netip.Addr{ip("me")}
		for _, w := range []string{"bob", "carol"} {
			c.Memory.Trails = append(c.Memory.Trails, path.Trail{Waypoint: w, Network: network, At: at, Trip: 40 * time.Millisecond, Goodput: 8.9e6, GoodputAt: at})
		}
	})
}

// budgetWords returns the reasons why the waypoint is not taken.
func (s *selection) budgetWords(waypoint string) string {
	for _, c := range s.m.Explain(netip.AddrPortFrom(ip("web"), 80), netip.Addr{}, s.now).Candidates {
		if c.Waypoint == waypoint && !c.Taken {
			return c.Why()
		}
	}
	return ""
}

// When the budget is used up, the detour of an existing connection stands by and new connections take none, until the
// next month.
func TestBudgetIsUsedUp(t *testing.T) {
	s := limited(t, budget.Limits{Total: 50 * megabyte}) // a path carries about 1.1 MB a second
	s.offer("bob", "carol")
	s.connect()
	taken := s.subflows[1].waypoint
	s.bulk(30 * time.Second)
	s.want("with a budget", "join "+taken)
	s.bulk(30 * time.Second)
	s.want("when it is used up", "demote "+taken)
	carried := s.over(taken).data * 1400
	if carried < 50*megabyte || carried > 51*megabyte {
		t.Errorf("the detour carried %d bytes", carried)
	}
	s.bulk(10 * time.Minute)
	s.want("afterwards")
	if now := s.over(taken).data * 1400; now != carried {
		t.Errorf("%d bytes more were carried", now-carried)
	}
	if why := s.why(taken); why != "stands by: this month's budget for detours is used up (client.budget.total)" {
		t.Errorf("why: %q", why)
	}
	if d := left(s.m, s.token, taken, s.now); d.Ended || d.Reason.Cause != path.CauseBudget || d.Why() != "this month's budget for detours was used up (client.budget.total)" {
		t.Errorf("left: %+v", d)
	}
	s.connect()
	s.bulk(10 * time.Second)
	s.want("the next connection")
	for _, waypoint := range []string{"bob", "carol"} {
		if why := s.budgetWords(waypoint); why != "this month's 50 MB for detours are used up (client.budget.total)" {
			t.Errorf("why not %s: %q", waypoint, why)
		}
	}
	if note := s.m.Snapshot(s.now).Conns[0].Note; note.Text != "this month's 50 MB for detours are used up (client.budget.total)" || note.Code != path.NoteBudget || note.Budget != budget.Total {
		t.Errorf("note: %+v", note)
	}
	s.now = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	s.bulk(10 * time.Second)
	if len(s.subflows) != 2 || s.subflows[1].backup {
		t.Errorf("in the next month: %v", s.log)
	}
}

// The detour of an existing connection carries again in the next month.
func TestBudgetIsRenewed(t *testing.T) {
	s := limited(t, budget.Limits{Waypoint: 20 * megabyte})
	s.offer("bob")
	s.connect()
	s.bulk(time.Minute)
	s.want("in January", "join bob", "demote bob")
	if why := s.why("bob"); why != "stands by: this month's budget for its waypoint is used up (client.budget.waypoint)" {
		t.Errorf("why: %q", why)
	}
	s.now = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	s.bulk(5 * time.Second)
	s.want("in February", "promote bob")
}

// If a waypoint's budget is nearly used up, new connections take another. If it is used up, existing ones do, too.
func TestBudgetOfWaypoint(t *testing.T) {
	s := limited(t, budget.Limits{Waypoint: 50 * megabyte})
	s.offer("bob")
	s.connect()
	s.offer("carol")
	s.bulk(42 * time.Second)
	s.want("with a budget", "join bob")
	if why := s.budgetWords("bob"); why != "a spare: this month's budget for its waypoint is nearly used up (client.budget.waypoint)" {
		t.Errorf("why not bob: %q", why)
	}
	s.bulk(30 * time.Second)
	s.want("when it is used up", "demote bob", "join carol", "end bob")
	if why := s.budgetWords("bob"); why != "this month's 50 MB through bob are used up (client.budget.waypoint)" {
		t.Errorf("why not bob: %q", why)
	}
	levels := []budget.Level{}
	for _, b := range s.m.Budgets() {
		levels = append(levels, b.Level())
	}
	if !slices.Equal(levels, []budget.Level{budget.Spent, budget.Free}) {
		t.Errorf("bob and carol: %v", levels)
	}
}

// Only detours count. A connection to a converter at a waypoint's own address has a direct path, too.
func TestBudgetCountsDetoursOnly(t *testing.T) {
	s := limited(t, budget.Limits{Total: 50 * megabyte})
	s.tell(path.WaypointAddrs{Waypoint: "bob", Addrs: []netip.Addr{ip("web")}})
	s.connect()
	s.bulk(20 * time.Second)
	if used := s.m.Used()["2026-01"]; s.over("").data < 10000 || used.Total != 0 {
		t.Errorf("the direct path carried %d segments, and %d bytes of the budget are used", s.over("").data, used.Total)
	}
}

// The use by an earlier agent counts, and this one's use is returned to be saved.
func TestBudgetAfterRestart(t *testing.T) {
	before := limited(t, budget.Limits{Total: 5 * megabyte})
	before.offer("bob")
	before.connect()
	before.bulk(20 * time.Second)
	s := newSelectionWith(t, before.paths, func(c *path.Config) {
		c.Budget, c.Used = budget.Limits{Total: 5 * megabyte}, before.m.Used()
	})
	s.offer("bob")
	s.connect()
	s.bulk(5 * time.Second)
	s.want("after the restart")
}

// Only detours from a metered interface count for its budget. On another network, detours are taken.
func TestBudgetOfMeteredInterface(t *testing.T) {
	s := limited(t, budget.Limits{Metered: 10 * megabyte})
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}, Metered: []netip.Addr{ip("me")}})
	s.offer("bob")
	s.connect()
	s.bulk(30 * time.Second)
	s.want("metered", "join bob", "demote bob")
	if bob := s.shown("bob"); bob.Why != "stands by: this month's budget for detours from metered interfaces is used up (client.budget.metered)" || bob.Reason.Budget != budget.Metered {
		t.Errorf("bob stands by: %+v", bob)
	}
	if why := s.budgetWords("bob"); why != "this month's 10 MB for detours from metered interfaces are used up (client.budget.metered)" {
		t.Errorf("why not bob: %q", why)
	}
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	s.bulk(5 * time.Second)
	s.want("not metered", "promote bob")
}

// If two budgets are used up, the reason names the one that keeps the detour from carrying now.
func TestReasonNamesTheBudgetThatHolds(t *testing.T) {
	s := newSelectionWith(t, map[string]*pathWorth{"": good(), "bob": good()}, func(c *path.Config) {
		c.Budget = budget.Limits{Total: 50 * megabyte, Metered: 10 * megabyte}
		c.Used = map[budget.Month]budget.Use{"2026-01": {Total: 50*megabyte - 1, Metered: 10*megabyte - 1}}
	})
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}, Metered: []netip.Addr{ip("me")}})
	s.offer("bob")
	s.connect()
	s.bulk(10 * time.Second)
	if r := s.shown("bob").Reason; r.Cause != path.CauseBudget || r.Budget != budget.Metered {
		t.Errorf("from a metered interface: %+v", r)
	}
	s.tell(path.LocalAddrs{Addrs: []netip.Addr{ip("me")}})
	s.bulk(5 * time.Second)
	if r := s.shown("bob").Reason; r.Cause != path.CauseBudget || r.Budget != budget.Total {
		t.Errorf("from another: %+v", r)
	}
}

// A connection with no other path keeps its detour: a budget never breaks it.
func TestBudgetBreaksNoConnection(t *testing.T) {
	s := limited(t, budget.Limits{Total: 20 * megabyte})
	s.offer("bob")
	s.connect()
	s.bulk(5 * time.Second)
	direct := s.over("")
	s.subflows = slices.DeleteFunc(s.subflows, func(c *carried) bool { return c == direct })
	s.paths[""].dead = true
	s.tell(path.SubflowClosed{Token: s.token, Local: direct.local, Remote: direct.remote})
	s.log = nil
	was := s.over("bob").data
	for range 60 {
		s.bulk(time.Second)
		s.subflows = slices.DeleteFunc(s.subflows, func(c *carried) bool {
			dead := c.waypoint == ""
			if dead {
				s.tell(path.SubflowClosed{Token: s.token, LocalID: 2, Local: c.local, Remote: c.remote})
			}
			return dead
		})
	}
	if carried := s.over("bob").data - was; carried < 30*700 {
		t.Errorf("without the direct path, the detour carried %d segments: %v", carried, s.log)
	}
}

// A TLS connection's detour that waits for the server's first data keeps waiting.
func TestBudgetAndTLS(t *testing.T) {
	s := newSelectionWith(t, map[string]*pathWorth{"": good(), "bob": good()}, func(c *path.Config) {
		c.Budget, c.TLSPorts = budget.Limits{Total: 20 * megabyte}, []uint16{80}
		c.Used = map[budget.Month]budget.Use{"2026-01": {Total: 20*megabyte - 1}}
	})
	s.offer("bob")
	s.connect()
	s.want("at first", "join bob as backup")
	// Another connection uses up the rest of the budget.
	other, detour := netip.AddrPortFrom(ip("me"), 40000), netip.AddrPortFrom(ip("bob"), 81)
	s.m.Handle(path.ConnEstablished{Token: 99, Local: other, Remote: netip.AddrPortFrom(ip("web"), 81)}, s.now)
	s.m.Handle(path.SubflowRequested{Token: 99, LocalID: 1, Local: netip.AddrPortFrom(ip("me"), 40001)}, s.now)
	s.m.Handle(path.SubflowEstablished{Token: 99, LocalID: 1, Local: netip.AddrPortFrom(ip("me"), 40001), Remote: detour}, s.now)
	s.m.Handle(path.Measured{Samples: []path.Sample{{Token: 99, Local: netip.AddrPortFrom(ip("me"), 40001), Remote: detour, BytesReceived: 9}}}, s.now)
	s.bulk(20 * time.Second)
	s.want("with data")
}
