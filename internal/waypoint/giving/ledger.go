package giving

import (
	"maps"
	"slices"
	"time"
)

// Month names a calendar month, such as "2026-10". Months sort as their names do.
type Month string

// MonthOf returns the month of t, in t's time zone.
func MonthOf(t time.Time) Month { return Month(t.Format("2006-01")) }

// NextMonth returns the beginning of the month after t, when quotas begin anew.
func NextMonth(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month()+1, 1, 0, 0, 0, 0, t.Location())
}

// ledgerMonths is the number of months that are kept. Only the present one counts. The others are for a host whose
// clock was wrong: when it is corrected, the count of the right month is still known.
const ledgerMonths = 13

// Ledger has the bytes that were forwarded for members in each month. They come from one counter, the
// kernel's, which only grows and belongs to one month at a time.
type Ledger struct {
	// Counting is the month to which the counter belongs.
	Counting Month            `json:"counting"`
	Bytes    map[Month]uint64 `json:"bytes"`
}

// Used returns the bytes of the counter's month.
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

// Count takes in the counter: used bytes in its month. A larger count that was known before stays.
func (l *Ledger) Count(used uint64) {
	if l.Bytes == nil {
		l.Bytes = make(map[Month]uint64)
	}
	l.Bytes[l.Counting] = max(l.Bytes[l.Counting], used)
}

// Turn gives the counter to another month from now on. The caller must set it to the bytes that are known
// of that month.
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
