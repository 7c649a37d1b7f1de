package giving

import (
	"maps"
	"slices"
	"time"
)

// Month names a month of the calendar, such as "2026-10", so that words sort as months do.
type Month string

// MonthOf returns the month that t is in, where t is.
func MonthOf(t time.Time) Month { return Month(t.Format("2006-01")) }

// NextMonth returns when the month after that of t begins, and a quota anew.
func NextMonth(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, t.Location())
}

// ledgerMonths is the number of months that are kept. Only the present one decides; but a clock that was wrong,
// and is put right, finds what it had counted before.
const ledgerMonths = 13

// Ledger counts the bytes that were forwarded for members in each month. One counter, which only grows,
// counts for one month at a time.
type Ledger struct {
	// Counting is the month that the counter counts for.
	Counting Month            `json:"counting"`
	Bytes    map[Month]uint64 `json:"bytes"`
}

// Used returns what was forwarded in the month that the counter counts for.
func (l *Ledger) Used() uint64 { return l.Bytes[l.Counting] }

// IsZero reports whether nothing was forwarded in any month.
func (l *Ledger) IsZero() bool {
	for _, bytes := range l.Bytes {
		if bytes > 0 {
			return false
		}
	}
	return true
}

// Count takes the counter in: it has counted used bytes in its month. What was known to be more stays.
func (l *Ledger) Count(used uint64) {
	if l.Bytes == nil {
		l.Bytes = make(map[Month]uint64)
	}
	l.Bytes[l.Counting] = max(l.Bytes[l.Counting], used)
}

// Turn has the counter count for another month from now on. It is to begin with what is known of that
// one.
func (l *Ledger) Turn(to Month) {
	l.Counting = to
	l.Count(0)
	kept := slices.Sorted(maps.Keys(l.Bytes))
	for _, old := range kept[:max(0, len(kept)-ledgerMonths)] {
		if old != to {
			delete(l.Bytes, old)
		}
	}
}
