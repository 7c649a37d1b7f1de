package notify

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// play passes a state to the watcher every five seconds, and returns its notices.
type play struct {
	t   *testing.T
	w   Watcher
	now time.Time
}

func newPlay(t *testing.T) *play { return &play{t: t, now: time.Unix(1_000_000, 0)} }

func (p *play) see(s api.Status, times int) (told []string) {
	for range times {
		p.now = p.now.Add(5 * time.Second)
		for _, n := range p.w.Take(&s, p.now) {
			told = append(told, string(n.Kind)+" "+n.Text)
		}
	}
	return told
}

func (p *play) want(what string, told []string, want ...string) {
	p.t.Helper()
	if !slices.Equal(told, want) {
		p.t.Errorf("%s: told %q, want %q", what, told, want)
	}
}

func with(state api.WaypointState, why string) api.Status {
	return api.Status{Client: &api.Using{Waypoints: []api.Waypoint{{Name: "bob", State: state, Why: why}}}}
}

func TestWaypointLostAndBack(t *testing.T) {
	p := newPlay(t)
	p.want("at first", p.see(with(api.WaypointUp, ""), 10))
	p.want("for a moment", p.see(with(api.WaypointDown, "no answer"), 3))
	p.want("back at once", p.see(with(api.WaypointUp, ""), 10))
	p.want("lost", p.see(with(api.WaypointDown, "no answer"), 100), "waypoint-lost the waypoint bob is lost: no answer")
	p.want("back", p.see(with(api.WaypointUp, ""), 100), "waypoint-back the waypoint bob is back")
}

// One of two addresses is enough. A waypoint that was lost before the first state causes no notice.
func TestWaypointWithTwoAddresses(t *testing.T) {
	p := newPlay(t)
	half := with(api.WaypointDown, "")
	half.Client.Waypoints = append(half.Client.Waypoints, api.Waypoint{Name: "bob", State: api.WaypointUp})
	p.want("one is up", p.see(half, 100))
	p = newPlay(t)
	p.want("lost before", p.see(with(api.WaypointDown, ""), 100))
	p.want("it comes", p.see(with(api.WaypointUp, ""), 100), "waypoint-back the waypoint bob is back")
}

func TestProblems(t *testing.T) {
	p := newPlay(t)
	p.want("an old one", p.see(api.Status{Problems: []string{"old"}}, 100))
	p.want("a new one", p.see(api.Status{Problems: []string{"old", "new"}}, 100), "problem new")
	p.want("both solved", p.see(api.Status{}, 100), "solved solved: new", "solved solved: old")
	p.want("a short one", append(p.see(api.Status{Problems: []string{"short"}}, 2), p.see(api.Status{}, 100)...))
	if n := len(p.w.problems); n > 2 {
		t.Errorf("%d problems are remembered", n)
	}
	p.now = p.now.Add(2 * forgetAfter)
	p.see(api.Status{}, 2)
	if n := len(p.w.problems); n != 0 {
		t.Errorf("after hours, %d problems are remembered", n)
	}
}

func TestQuota(t *testing.T) {
	p := newPlay(t)
	renews := time.Date(2026, 4, 1, 0, 0, 0, 0, time.Local)
	used := func(n uint64) api.Status {
		return api.Status{Serving: &api.Serving{Given: api.Given{QuotaBytes: 1000, UsedBytes: n, Renews: renews}}}
	}
	p.want("little", p.see(used(100), 10))
	p.want("most", p.see(used(801), 10), "quota 80 % of the monthly quota for members is used; it begins anew on 2026-04-01")
	p.want("more", p.see(used(850), 10))
	p.want("nearly all", p.see(used(960), 1), "quota 96 % of the monthly quota for members is used; it begins anew on 2026-04-01")
	renews = renews.AddDate(0, 1, 0)
	p.want("next month", p.see(used(10), 10))
	p.want("again", p.see(used(1000), 10), "quota 100 % of the monthly quota for members is used; it begins anew on 2026-05-01")
}

// If a quota or a budget was raised or lowered, there are notices again when its new limit is near.
func TestRaisedLimits(t *testing.T) {
	p := newPlay(t)
	renews := time.Date(2026, 4, 1, 0, 0, 0, 0, time.Local)
	of := func(used, limit uint64) api.Status {
		return api.Status{
			Serving: &api.Serving{Given: api.Given{QuotaBytes: limit, UsedBytes: used, Renews: renews}},
			Client:  &api.Using{Budgets: []api.Budget{{Scope: "total", Used: used, Limit: limit, Renews: renews}}},
		}
	}
	both := func(share string) []string {
		return []string{"budget " + share + " % of the month's budget (client.budget.total) is used; it begins anew on 2026-04-01",
			"quota " + share + " % of the monthly quota for members is used; it begins anew on 2026-04-01"}
	}
	p.see(of(0, 1000), 1)
	p.want("all", p.see(of(1000, 1000), 5), both("100")...)
	p.want("twice as much", p.see(of(1000, 2000), 5))
	p.want("most of that", p.see(of(1700, 2000), 5), both("85")...)
	p.want("a little more, of which this is most", p.see(of(1700, 2100), 5))
	p.want("less", p.see(of(1700, 1700), 5), both("100")...)
}

func TestAgentLost(t *testing.T) {
	p := newPlay(t)
	p.see(api.Status{}, 10)
	var told []Notice
	for range 100 {
		p.now = p.now.Add(5 * time.Second)
		told = append(told, p.w.Fail(errors.New("refused"), p.now)...)
	}
	if len(told) != 1 || told[0].Kind != AgentLost {
		t.Errorf("told %+v", told)
	}
	p.want("it answers", p.see(api.Status{}, 10), "agent-back the agent answers again")
}

// The direct path is lost if all connections have detours only. There is no notice if only one connection has, if a
// direct subflow is joining, or if there are no connections.
func TestDirectPathLostAndBack(t *testing.T) {
	direct, joining, detour := api.Subflow{State: api.SubflowUp}, api.Subflow{State: api.SubflowJoining}, api.Subflow{Waypoint: "bob", State: api.SubflowUp}
	state := func(connections ...[]api.Subflow) api.Status {
		s := api.Status{Client: &api.Using{}}
		for _, subflows := range connections {
			s.Client.Connections = append(s.Client.Connections, api.Connection{Subflows: subflows})
		}
		return s
	}
	both, alone := []api.Subflow{direct, detour}, []api.Subflow{joining, detour}
	p := newPlay(t)
	p.want("at first", p.see(state(both, both), 10))
	p.want("one has lost its direct subflow", p.see(state(both, alone), 10))
	p.want("for a moment", p.see(state(alone, alone), 3))
	p.want("back at once", p.see(state(both, alone), 10))
	p.want("lost", p.see(state(alone, alone), 20), "path-lost the direct path is lost: 2 connections continue over detours alone")
	p.want("no connection", p.see(state(), 20))
	p.want("one that ends", p.see(state([]api.Subflow{}), 20))
	p.want("unknown", p.see(state(both), 20)) // nobody uses it
	back := state(both)
	back.Client.Direct = &api.DirectPath{State: api.DirectUp}
	p.want("back", p.see(back, 20), "path-back the direct path works again")
}

// The direct path may be lost although its subflows stay. The notice comes 20 seconds after it was last heard.
func TestSilentDirectPath(t *testing.T) {
	state := func(direct api.SubflowState, path *api.DirectPath) api.Status {
		return api.Status{Client: &api.Using{Direct: path, Connections: []api.Connection{
			{Subflows: []api.Subflow{{State: direct}, {Waypoint: "bob", State: api.SubflowUp}}},
			{Subflows: []api.Subflow{{State: api.SubflowUp}, {Waypoint: "bob", State: api.SubflowUp}}}, // idle
		}}}
	}
	works := state(api.SubflowUp, &api.DirectPath{State: api.DirectUp})
	p := newPlay(t)
	p.want("at first", p.see(works, 10))
	p.want("one connection's", p.see(state(api.SubflowSilent, &api.DirectPath{State: api.DirectUp}), 20))
	lost := state(api.SubflowSilent, &api.DirectPath{State: api.DirectLost, Since: p.now.Add(-10 * time.Second), Connections: 1})
	p.want("silent for 15 seconds", p.see(lost, 1))
	p.want("for 20 seconds", p.see(lost, 1), "path-lost the direct path is lost: 1 connection continues over detours alone")
	p.want("for longer", p.see(lost, 20))
	p.want("nobody uses it", p.see(state(api.SubflowUp, nil), 20))
	p.want("it works", p.see(works, 20), "path-back the direct path works again")
	p = newPlay(t)
	p.want("lost before the start", p.see(lost, 20))
	p.want("it comes", p.see(works, 20), "path-back the direct path works again")
}

func TestBudgetNearsItsEnd(t *testing.T) {
	renews := time.Date(2026, 4, 1, 0, 0, 0, 0, time.Local)
	used := func(n uint64) api.Status {
		return api.Status{Client: &api.Using{Budgets: []api.Budget{{Scope: "waypoint", Waypoint: "bob", Used: n, Limit: 1000, Renews: renews}, {Scope: "total"}}}}
	}
	p := newPlay(t)
	p.want("at first", p.see(used(100), 2))
	p.want("most", p.see(used(810), 5), "budget 81 % of the month's budget (client.budget.waypoint, bob) is used; it begins anew on 2026-04-01")
	p.want("all", p.see(used(1000), 5), "budget 100 % of the month's budget (client.budget.waypoint, bob) is used; it begins anew on 2026-04-01")
	renews = renews.AddDate(0, 1, 0)
	p.want("the next month", p.see(used(0), 5))
	p.want("again", p.see(used(960), 5), "budget 96 % of the month's budget (client.budget.waypoint, bob) is used; it begins anew on 2026-05-01")
	p = newPlay(t)
	p.want("used before", p.see(used(1000), 5))
}
