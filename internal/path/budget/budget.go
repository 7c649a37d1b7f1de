package budget

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Limits holds the operator's limits: bytes of payload in a calendar month, both directions together. 0 means no
// limit.
type Limits struct {
	Total    uint64 // through all waypoints together
	Waypoint uint64 // through each waypoint
	Metered  uint64 // through all waypoints together, from metered interfaces
}

// None reports whether nothing is limited.
func (l Limits) None() bool { return l == Limits{} }

// Month names a calendar month, such as "2026-10". Names sort like months.
type Month string

// Use counts the bytes of one month.
type Use struct {
	Total     uint64            `json:"total"`
	Metered   uint64            `json:"metered,omitempty"`
	Waypoints map[string]uint64 `json:"waypoints,omitempty"`
}

// Scope is what a limit applies to.
type Scope uint8

// Each scope has a limit of its own.
const (
	// Total is the scope of all waypoints together.
	Total Scope = iota
	// Waypoint is the scope of one waypoint.
	Waypoint
	// Metered is the scope of all waypoints, from metered interfaces.
	Metered
)

func (s Scope) String() string { return [...]string{"total", "waypoint", "metered"}[s] }

// Level classifies the used share of a limit.
type Level uint8

const (
	// Free means that less than four fifths are used.
	Free Level = iota
	// Nearly means that four fifths are used.
	Nearly
	// Spent means that all is used.
	Spent
)

func (l Level) String() string { return [...]string{"free", "nearly", "spent"}[l] }

// Standing is the state of one limit.
type Standing struct {
	Scope    Scope
	Waypoint string // set for the scope Waypoint only
	Used     uint64
	Limit    uint64 // 0: no limit
	// Renews is the time at which the next month begins.
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
	// monthsKept is the number of months that are kept. Only the present one decides. The others are kept so that,
	// after a wrong clock is corrected, earlier counts are found again.
	monthsKept = 13
	// mostWaypoints bounds the waypoints of a month that are counted by name.
	mostWaypoints = 1024
)

// Book counts the bytes that are used. It is not safe for concurrent use.
type Book struct {
	limits Limits
	months map[Month]*Use
	month  Month
	use    *Use      // of month
	begins time.Time // start of month
	renews time.Time
}

// New returns a book that continues the counts of earlier months and of this one.
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

// Turn makes the book count for the month of now. It reports whether that changed the level of a limit.
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

// Add counts bytes that were carried through a waypoint. metered tells whether they went over a metered interface. It
// reports whether that changed the level of a limit.
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

// add adds without overflow, because counts from a file may have any value.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// Of returns the most used of the limits that apply to a waypoint.
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

// Spares reports whether a waypoint's own limit is nearly spent or spent.
func (b *Book) Spares(waypoint string) bool {
	return b.use != nil && b.waypoint(waypoint).Level() != Free
}

// Standings returns the limits that are set, in the order of their scopes, and those of waypoints by name.
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

// Used returns the counts of all kept months, to be saved.
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

// limited names a limit that is not free, and its level.
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
