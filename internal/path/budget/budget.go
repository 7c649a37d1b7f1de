package budget

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Limits are the operator's budgets: bytes of payload in a calendar month, both directions together. 0 is no limit.
type Limits struct {
	Total    uint64 // through all waypoints together
	Waypoint uint64 // through each waypoint
	Metered  uint64 // through all waypoints, from metered interfaces
}

// None reports whether nothing is limited.
func (l Limits) None() bool { return l == Limits{} }

// Month names a month of the calendar, such as "2026-10", so that words sort as months do.
type Month string

// Use is what was used in one month.
type Use struct {
	Total     uint64            `json:"total"`
	Metered   uint64            `json:"metered,omitempty"`
	Waypoints map[string]uint64 `json:"waypoints,omitempty"`
}

// Scope tells what a limit concerns.
type Scope uint8

// The scopes have a limit each.
const (
	Total Scope = iota
	Waypoint
	Metered
)

func (s Scope) String() string { return [...]string{"total", "waypoint", "metered"}[s] }

// Level tells how much of a limit is used.
type Level uint8

// A limit is nearly spent from four fifths on.
const (
	Free Level = iota
	Nearly
	Spent
)

func (l Level) String() string { return [...]string{"free", "nearly", "spent"}[l] }

// Standing is the state of one limit.
type Standing struct {
	Scope    Scope
	Waypoint string // for the scope Waypoint
	Used     uint64
	Limit    uint64 // 0: no limit
	// Renews is when the next month begins.
	Renews time.Time
}

// Level returns how much of the limit is used.
func (s Standing) Level() Level {
	switch {
	case s.Limit == 0:
		return Free
	case s.Used >= s.Limit:
		return Spent
	case s.Used >= s.Limit-s.Limit/5:
		return Nearly
	}
	return Free
}

func (s Standing) share() float64 {
	if s.Limit == 0 {
		return 0
	}
	return float64(s.Used) / float64(s.Limit)
}

const (
	// monthsKept is the number of months that are kept. Only the present one decides. A clock that was wrong and is
	// put right finds what was counted before.
	monthsKept = 13
	// mostWaypoints bounds the waypoints of a month that are counted by name.
	mostWaypoints = 1024
)

// Book counts what is used. It is not safe for concurrent use.
type Book struct {
	limits Limits
	months map[Month]*Use
	month  Month
	use    *Use      // of month
	begins time.Time // with it
	renews time.Time
}

// New returns a book that goes on from what was used in earlier months and in this one.
func New(limits Limits, used map[Month]Use) *Book {
	b := &Book{limits: limits, months: make(map[Month]*Use)}
	for month, use := range used {
		use.Waypoints = maps.Clone(use.Waypoints)
		b.months[month] = &use
	}
	return b
}

// Limited reports whether there is any limit. Without one nothing is counted.
func (b *Book) Limited() bool { return !b.limits.None() }

// Turn has the book count for the month of now. It reports whether that made the level of a limit another.
func (b *Book) Turn(now time.Time) (changed bool) {
	if !b.Limited() || b.use != nil && !now.Before(b.begins) && now.Before(b.renews) {
		return false
	}
	month := Month(now.Format("2006-01"))
	before := b.levels()
	b.month = month
	b.begins = time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, now.Location())
	b.renews = time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, now.Location())
	if b.months[month] == nil {
		b.months[month] = &Use{}
	}
	b.use = b.months[month]
	kept := slices.Sorted(maps.Keys(b.months))
	for _, old := range kept[:max(0, len(kept)-monthsKept)] {
		if old != month {
			delete(b.months, old)
		}
	}
	return !slices.Equal(before, b.levels())
}

// Add counts bytes that were carried through a waypoint, from a metered interface or not. It reports whether that made
// the level of a limit another.
func (b *Book) Add(waypoint string, metered bool, bytes uint64) (changed bool) {
	if b.use == nil || bytes == 0 {
		return false
	}
	before := b.levelsOf(waypoint, metered)
	b.use.Total = add(b.use.Total, bytes)
	if metered {
		b.use.Metered = add(b.use.Metered, bytes)
	}
	if b.use.Waypoints == nil {
		b.use.Waypoints = make(map[string]uint64)
	}
	if _, known := b.use.Waypoints[waypoint]; known || len(b.use.Waypoints) < mostWaypoints {
		b.use.Waypoints[waypoint] = add(b.use.Waypoints[waypoint], bytes)
	}
	return before != b.levelsOf(waypoint, metered)
}

// add adds without overflow: a file may say anything.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// Of returns the limit that is used most of those that concern a waypoint.
func (b *Book) Of(waypoint string, metered bool) Standing {
	if b.use == nil {
		return Standing{}
	}
	worst := b.total()
	more := func(s Standing) {
		if cmp.Or(cmp.Compare(s.Level(), worst.Level()), cmp.Compare(s.share(), worst.share())) > 0 {
			worst = s
		}
	}
	more(b.waypoint(waypoint))
	if metered {
		more(b.metered())
	}
	return worst
}

// Spares reports whether the limit of a waypoint is spent or nearly so.
func (b *Book) Spares(waypoint string) bool {
	return b.use != nil && b.waypoint(waypoint).Level() != Free
}

// Standings returns the limits that are set, each waypoint's by itself, in the order of their scopes and names.
func (b *Book) Standings() (list []Standing) {
	if b.use == nil {
		return nil
	}
	list = append(list, b.total())
	for _, name := range slices.Sorted(maps.Keys(b.use.Waypoints)) {
		list = append(list, b.waypoint(name))
	}
	list = append(list, b.metered())
	return slices.DeleteFunc(list, func(s Standing) bool { return s.Limit == 0 })
}

// Used returns what was used in each month, to be kept.
func (b *Book) Used() map[Month]Use {
	all := make(map[Month]Use, len(b.months))
	for month, use := range b.months {
		all[month] = Use{use.Total, use.Metered, maps.Clone(use.Waypoints)}
	}
	return all
}

func (b *Book) total() Standing {
	return Standing{Scope: Total, Used: b.use.Total, Limit: b.limits.Total, Renews: b.renews}
}

func (b *Book) waypoint(name string) Standing {
	return Standing{Scope: Waypoint, Waypoint: name, Used: b.use.Waypoints[name], Limit: b.limits.Waypoint, Renews: b.renews}
}

func (b *Book) metered() Standing {
	return Standing{Scope: Metered, Used: b.use.Metered, Limit: b.limits.Metered, Renews: b.renews}
}

func (b *Book) levelsOf(waypoint string, metered bool) (levels [3]Level) {
	levels = [3]Level{b.total().Level(), b.waypoint(waypoint).Level(), Free}
	if metered {
		levels[Metered] = b.metered().Level()
	}
	return levels
}

// limited names a limit and its level.
type limited struct {
	scope    Scope
	waypoint string
	level    Level
}

// levels returns the limits that are not free.
func (b *Book) levels() (list []limited) {
	for _, s := range b.Standings() {
		if s.Level() != Free {
			list = append(list, limited{s.Scope, s.Waypoint, s.Level()})
		}
	}
	return list
}
