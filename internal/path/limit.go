package path

import (
	"slices"
	"strings"
	"time"
)

// This file limits subflows by the path that they use: their rate (subflow rate limit, Tran 2019, 6.4.1), and how
// long their data may stay unacknowledged. The peer needs to know nothing of that. This host sends no faster than the
// limit, and marks or drops what it receives faster, so that the peer slows down.
//
// A limit that begins while a subflow carries would hold up the whole connection: what the sender has queued there
// passes no faster than the limit, and it loses most of what it has in flight. Therefore the subflow first becomes a
// backup, so that its queue drains at the path's own rate. Then another takes its place, with the limit from the start:
// its sender has no window from before. If no other path carries, the subflows of the path do that in turn.
//
// A limit of 0 ends a subflow gracefully. The subflow becomes a backup, so that the peer delivers what it has queued
// there, and ends when nothing more comes. A direct subflow only becomes a backup.

const (
	// nearShare is the used share of a quota from which Rule.NearQuota limits the path.
	nearShare = 0.8
	// emptiesTold is the number of demotions after which a peer that still sends there gets the limit at once, which
	// takes seven seconds.
	emptiesTold = 3
	// emptiesProbed is the time between two samples of a subflow that empties.
	emptiesProbed = 100 * time.Millisecond
)

// RateLimit bounds the payload that one subflow carries in each direction. The zero value is no bound.
type RateLimit struct {
	On bool
	// Rate is in bits a second. At 0, the path is to have no subflow once another path carries.
	Rate float64
}

func (l RateLimit) closes() bool { return l.On && l.Rate == 0 }

// lower returns the lower of two limits.
func (l RateLimit) lower(other RateLimit) RateLimit {
	if !l.On || other.On && other.Rate < l.Rate {
		return other
	}
	return l
}

// Restriction bounds the rate and the user timeout of a subflow. The zero value bounds nothing.
type Restriction struct {
	Rate        float64       // bits of payload a second, in each direction; 0: no bound
	UserTimeout time.Duration // for data that stays unacknowledged (RFC 5482); 0: the kernel's
}

// Restrict applies a Restriction to a subflow from now on. A subflow that no longer exists is not an error.
type Restrict struct {
	Ends Ends
	Restriction
	// Gone is set for a subflow that ended.
	Gone bool
}

func (Restrict) action() {}

// restrictions holds the restrictions in force, by connection.
type restrictions map[Token][]Restrict

// rate returns the rate to which a subflow is restricted, or 0 if there is none.
func (r restrictions) rate(token Token, ends Ends) float64 {
	if i := slices.IndexFunc(r[token], func(is Restrict) bool { return is.Ends == ends }); i >= 0 {
		return r[token][i].Rate
	}
	return 0
}

// end lifts the restrictions of a connection.
func (r restrictions) end(token Token, out *actions) {
	r.keep(token, nil, out)
	delete(r, token)
}

// keep changes the restrictions of a connection to the wanted ones.
func (r restrictions) keep(token Token, wanted []Restrict, out *actions) {
	for _, is := range r[token] {
		if !slices.ContainsFunc(wanted, func(w Restrict) bool { return w.Ends == is.Ends }) {
			out.do(Restrict{Ends: is.Ends, Gone: true})
		}
	}
	for _, w := range wanted {
		i := slices.IndexFunc(r[token], func(is Restrict) bool { return is.Ends == w.Ends })
		if i < 0 && w.Restriction != (Restriction{}) || i >= 0 && r[token][i] != w {
			out.do(w)
		}
	}
	r[token] = wanted
}

// restricts reports whether the rule restricts any subflow.
func (r *Rule) restricts() bool { return len(r.Limits) > 0 || r.NearQuota.On || r.UserTimeout > 0 }

// limitOf returns the limit of a path, by the path's name.
func (sp spending) limitOf(r *Rule, path string, now time.Time) RateLimit {
	limit := r.Limits[path]
	if r.NearQuota.On && sp.share(r, path, now) >= nearShare {
		limit = limit.lower(r.NearQuota)
	}
	return limit
}

// closedNote names the paths that a rule limits to a rate of 0, or returns "" if there are none.
func (sp spending) closedNote(r *Rule, now time.Time) string {
	var paths []string
	for path := range r.Limits {
		if sp.limitOf(r, path, now).closes() {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return ""
	}
	slices.Sort(paths)
	return "the policy limits " + strings.Join(paths, " and ") + " to 0"
}

// isReplaced reports whether another subflow on the same path empties, or joins in the place of one that did. Then s
// empties after that, because all of them at once would leave the connection without one that carries.
func (m *Manager) isReplaced(t turn, s *subflow, path string) bool {
	return t.has(func(x *subflow) bool {
		return x != s && (x.empties || !x.stayed(t.now)) && m.detours.pathName(x) == path
	})
}

// restrict brings the restrictions of a connection up to date.
func (m *Manager) restrict(t turn) {
	if !t.rule.restricts() {
		return
	}
	var wanted []Restrict
	for _, s := range t.subflows {
		if !s.up {
			continue
		}
		ends := Ends{s.local, s.remote}
		rate := m.limit(t, s, m.restrictions.rate(t.token, ends))
		wanted = append(wanted, Restrict{Ends: ends, Restriction: Restriction{rate, t.rule.UserTimeout}})
	}
	m.restrictions.keep(t.token, wanted, t.out)
}

// limit returns the rate that a subflow is to have now, or 0 if it has no limit. is is the rate that it had.
func (m *Manager) limit(t turn, s *subflow, is float64) float64 {
	path := m.detours.pathName(s)
	limit := m.detours.spending.limitOf(t.rule, path, t.now)
	begins := limit.Rate > 0 && (is == 0 || limit.Rate < is)
	switch {
	case limit.closes() && !s.direct && s.isEmptied():
		t.leaveFor(s, SubflowReason{Cause: CauseLimited, Numbers: &Numbers{}})
	case !begins || !s.carried() || s.backup && s.told.times > emptiesTold:
		s.empties = false
	case !m.mayCarryWithout(t, s):
		s.empties = false
		if m.isReplaced(t, s, path) {
			return is
		}
	case !s.empties:
		s.empties = true
		return is
	case s.isEmptied():
		over, _ := m.detours.spending.over(t.rule, path, t.now)
		if s.empties = !over && !s.foreign; s.empties {
			t.leaveFor(s, SubflowReason{Cause: CauseLimited, Numbers: &Numbers{Limit: limit.Rate}})
		}
	default:
		if t.now.Sub(s.at) >= emptiesProbed {
			t.out.do(Measure{t.token, s.local, s.remote})
		}
		return is
	}
	return limit.Rate
}

// isEmptied reports whether the subflow stands by and its queue had drained at the last sample.
func (s *subflow) isEmptied() bool {
	return s.standby && s.backup && s.isDrained(s.at.Sub(s.told.at), longestDrain)
}
