package claim

import (
	"cmp"
	"slices"
	"time"
)

// Verdict tells whether a member's claim about a waypoint agreed with this host's own measurement. Verdicts outlive
// the Book.
type Verdict struct {
	Member, Waypoint string
	Agreed           bool
	At               time.Time
}

// longestName bounds the names in verdicts.
const longestName = 63

// valid reports whether the verdict may be from before now and has not expired. A file may have any content, and
// clocks may be wrong.
func (v Verdict) valid(now time.Time) bool {
	named := func(s string) bool { return s != "" && len(s) <= longestName }
	return named(v.Member) && named(v.Waypoint) && v.Member != v.Waypoint && !v.At.After(now) && now.Sub(v.At) <= disbelievedFor
}

// Verdicts returns all verdicts, sorted by member.
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

// Recall adds the verdicts of an earlier Book that have not expired, within the bounds. Verdicts that exist already
// stay.
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

// makeRoom makes room for another member. If there is none, it forgets the silent member that was judged longest ago.
// It reports whether there is room.
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

// judged returns the time of the latest verdict about the member.
func (m *member) judged() (last time.Time) {
	for _, v := range m.verdicts {
		if v.at.After(last) {
			last = v.at
		}
	}
	return last
}
