package path

import (
	"slices"
	"time"
)

// This file limits subflows by the path that they use: their rate (subflow rate limit, Tran 2019, 6.4.1), and how
// long their data may stay unacknowledged. The peer needs to know nothing of that. This host sends no faster than the
// limit, and marks or drops what it receives faster, so that the peer slows down.
//
// A limit of 0 ends a subflow gracefully. The subflow becomes a backup, so that the peer delivers what it has queued
// there, and ends when nothing more comes. A direct subflow only becomes a backup.

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

// nearShare is the used share of a quota from which Rule.NearQuota limits the path.
const nearShare = 0.8

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
		limit := m.detours.spending.limitOf(t.rule, m.detours.pathName(s), t.now)
		if limit.closes() && !s.direct && s.drained() {
			s.leaving = true
		}
		wanted = append(wanted, Restrict{Ends: Ends{s.local, s.remote}, Restriction: Restriction{limit.Rate, t.rule.UserTimeout}})
	}
	m.restrictions.keep(t.token, wanted, t.out)
}

// drained reports whether the peer had time to deliver what it had queued when the subflow became a backup, and
// nothing more came until the last sample.
func (s *subflow) drained() bool {
	return s.standby && s.backup && s.at.Sub(s.told.at) >= drains && s.at.Sub(s.moved) >= drains
}
