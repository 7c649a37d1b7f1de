// Package notify decides when to notify a user about the agent's state: a path or waypoint is lost, there is a problem,
// or a quota or budget is nearly used up. It does no I/O. The caller passes each state to a Watcher and shows the
// Notices.
package notify

import (
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// Kind is the kind of a Notice.
type Kind string

// The kinds.
const (
	WaypointLost  Kind = "waypoint-lost"
	WaypointBack  Kind = "waypoint-back"
	ProblemFound  Kind = "problem"
	ProblemSolved Kind = "solved"
	QuotaNear     Kind = "quota"
	BudgetNear    Kind = "budget"
	PathLost      Kind = "path-lost"
	PathBack      Kind = "path-back"
	AgentLost     Kind = "agent-lost"
	AgentBack     Kind = "agent-back"
)

// Notice is a message to the user.
type Notice struct {
	Kind Kind
	Text string
}

const (
	// settled is the time for which a state must last before there is a notice of it. It is long enough for the restart
	// of a waypoint.
	settled = 20 * time.Second
	// forgetAfter is the time for which something is remembered after it was last seen.
	forgetAfter = time.Hour
)

// shares are the used parts of a quota or budget, in percent, at which there is a notice.
var shares = []uint64{80, 95, 100}

// Watcher compares states. The zero value has seen none. The first state causes no notices.
type Watcher struct {
	begun     bool
	silent    matter
	waypoints map[string]*matter
	problems  map[string]*matter
	direct    matter
	quota     spending
	budgets   map[string]spending // keyed by scope and waypoint
}

// matter is something that may go wrong, such as one waypoint.
type matter struct {
	wrong bool
	since time.Time // when wrong changed last
	told  bool      // the user knows that it is wrong, as is assumed of the first state
	seen  time.Time
}

// turn records whether the matter is wrong now. bad and good report whether to tell the user that it went wrong, or is
// well again.
func (m *matter) turn(wrong bool, now time.Time) (bad, good bool) {
	return m.turnSince(wrong, now, now)
}

// turnSince is turn for a change that happened earlier than now.
func (m *matter) turnSince(wrong bool, since, now time.Time) (bad, good bool) {
	if wrong != m.wrong || m.seen.IsZero() {
		m.wrong, m.since = wrong, since
	}
	m.seen = now
	if m.wrong == m.told || now.Sub(m.since) < settled {
		return false, false
	}
	m.told = m.wrong
	return m.wrong, !m.wrong
}

// Fail records that the agent did not answer.
func (w *Watcher) Fail(err error, now time.Time) (list []Notice) {
	if bad, _ := w.silent.turn(true, now); bad {
		list = append(list, Notice{AgentLost, fmt.Sprintf("the agent does not answer: %v", err)})
	}
	return list
}

// Take records a state and returns the notices that it causes.
func (w *Watcher) Take(s *api.Status, now time.Time) (list []Notice) {
	if _, good := w.silent.turn(false, now); good {
		list = append(list, Notice{AgentBack, "the agent answers again"})
	}
	if !w.begun {
		w.waypoints, w.problems = make(map[string]*matter), make(map[string]*matter)
	}
	if s.Client != nil {
		list = append(list, w.takeWaypoints(s.Client.Waypoints, now)...)
		list = append(list, w.takeDirect(s.Client, now)...)
		list = append(list, w.takeBudgets(s.Client.Budgets)...)
	}
	list = append(list, w.takeProblems(s.Problems, now)...)
	if s.Serving != nil {
		list = append(list, w.takeQuota(&s.Serving.Given)...)
	}
	w.begun = true
	return list
}

// takeWaypoints notices when all addresses of a waypoint are lost, and when it is back.
func (w *Watcher) takeWaypoints(all []api.Waypoint, now time.Time) (list []Notice) {
	lost, why := make(map[string]bool), make(map[string]string)
	for _, x := range all {
		down := x.State == api.WaypointDown
		was, known := lost[x.Name]
		lost[x.Name], why[x.Name] = down && (was || !known), x.Why
	}
	for name, is := range lost {
		m := w.waypoints[name]
		if m == nil {
			m = &matter{told: is}
			w.waypoints[name] = m
		}
		switch bad, good := m.turn(is, now); {
		case bad && why[name] != "":
			list = append(list, Notice{WaypointLost, fmt.Sprintf("the waypoint %s is lost: %s", name, why[name])})
		case bad:
			list = append(list, Notice{WaypointLost, fmt.Sprintf("the waypoint %s is lost", name)})
		case good:
			list = append(list, Notice{WaypointBack, fmt.Sprintf("the waypoint %s is back", name)})
		}
	}
	forget(w.waypoints, now)
	slices.SortFunc(list, byText)
	return list
}

func (w *Watcher) takeProblems(now []string, at time.Time) (list []Notice) {
	for _, p := range now {
		if w.problems[p] == nil {
			w.problems[p] = &matter{told: !w.begun}
		}
	}
	for text, m := range w.problems {
		is := slices.Contains(now, text)
		if !is && !m.told { // it was too short for a notice
			delete(w.problems, text)
			continue
		}
		seen := m.seen
		switch bad, good := m.turn(is, at); {
		case bad:
			list = append(list, Notice{ProblemFound, text})
		case good:
			list = append(list, Notice{ProblemSolved, "solved: " + text})
		}
		if !is {
			m.seen = seen
		}
	}
	forget(w.problems, at)
	slices.SortFunc(list, byText)
	return list
}

// takeQuota notices when the use of the quota reaches one of the shares. Each share causes one notice a month.
func (w *Watcher) takeQuota(g *api.Given) []Notice {
	if g.QuotaBytes == 0 {
		return nil
	}
	used := uint64(float64(g.UsedBytes) / float64(g.QuotaBytes) * 100)
	if !w.quota.reaches(used, g.QuotaBytes, g.Renews) || !w.begun {
		return nil
	}
	return []Notice{{QuotaNear, fmt.Sprintf("%d %% of the monthly quota for members is used; it begins anew on %s", used, g.Renews.Local().Format(time.DateOnly))}}
}

func forget(all map[string]*matter, now time.Time) {
	for name, m := range all {
		if now.Sub(m.seen).Abs() > forgetAfter {
			delete(all, name)
		}
	}
}

func byText(a, b Notice) int {
	switch {
	case a.Text < b.Text:
		return -1
	case a.Text > b.Text:
		return 1
	}
	return 0
}
