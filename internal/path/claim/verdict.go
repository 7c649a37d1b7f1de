package claim

import (
	"cmp"
	"slices"
	"time"
)

// Verdict is the result of comparing what a member claimed of a waypoint with this host's own measurement, in a form that
// outlives the Book.
type Verdict struct {
	Member, Waypoint string
	Agreed           bool
	At               time.Time
}

// longestName bounds the names in verdicts.
const longestName = 63

// valid reports whether the verdict can have been reached by now, and still lasts. A file may say anything, and clocks may be
// wrong.
func (v Verdict) valid(now time.Time) bool {
	named := func(s string) bool { return s != "" && len(s) <= longestName }
	return named(v.Member) && named(v.Waypoint) && v.Member != v.Waypoint && !v.At.After(now) && now.Sub(v.At) <= disbelievedFor
}

// Verdicts returns all verdicts, those of a member together.
func (b *Book) Verdicts() (list []Verdict) {
	for name, m := range b.members {
		for waypoint, v := range m.verdicts {
			list = append(list, Verdict{name, waypoint, v.agreed, v.at})
		}
	}
	slices.SortFunc(list, func(x, y Verdict) int {
		return cmp.Or(cmp.Compare(x.Member, y.Member), cmp.Compare(x.Waypoint, y.Waypoint))
	})
	return list
}

// Recall adds the verdicts of an earlier Book that still last, within the bounds. Where there is one already, that stays.
func (b *Book) Recall(list []Verdict, now time.Time) {
	for _, v := range list {
		m := b.members[v.Member]
		if !v.valid(now) || m == nil && len(b.members) >= mostMembers {
			continue
		}
		if m == nil {
			m = &member{verdicts: make(map[string]verdict)}
			b.members[v.Member] = m
		}
		if _, judged := m.verdicts[v.Waypoint]; !judged && len(m.verdicts) < mostVerdicts {
			m.verdicts[v.Waypoint] = verdict{v.Agreed, v.At}
		}
	}
}

// makeRoom forgets the member that is silent and was judged longest ago, if there is no more room and some are silent. It
// reports whether there is room.
func (b *Book) makeRoom() bool {
	if len(b.members) < mostMembers {
		return true
	}
	oldest, at := "", time.Time{}
	for name, m := range b.members {
		if len(m.claims) > 0 {
			continue
		}
		judged := m.judged()
		if oldest == "" || cmp.Or(judged.Compare(at), cmp.Compare(name, oldest)) < 0 {
			oldest, at = name, judged
		}
	}
	delete(b.members, oldest)
	return oldest != ""
}

// judged returns the time of the last verdict.
func (m *member) judged() (last time.Time) {
	for _, v := range m.verdicts {
		if v.at.After(last) {
			last = v.at
		}
	}
	return last
}
