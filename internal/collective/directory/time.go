package directory

import (
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// Time passes and trust changes. Either may have been wrong when a record was refused or dropped. Because coordinators
// do not send it again, the directory then requests everything again.

// relistAfter is the time after which everything is requested again if a record was not valid yet.
const relistAfter = time.Hour

// Tick removes expired records. Call it every few seconds, because it also notices when this host's clock is set.
func (d *Directory) Tick(now time.Time) []Event {
	now = now.Round(0) // compare wall clock times
	if now.Before(d.ticked.Add(-time.Minute)) {
		d.relistAt(now)
	}
	d.ticked = now
	if !d.relist.IsZero() && !now.Before(d.relist) {
		d.startOver()
	}
	events := d.dropThose(func(e *entry) (why string, yes bool) {
		if now.After(e.Until) {
			return "its record expired at " + stamp(e.Until), true
		}
		return "", false
	})
	maps.DeleteFunc(d.waiting, func(_ string, e *entry) bool { return now.After(e.Until) })
	return append(events, d.retry()...)
}

// Recheck removes records of revoked members. Call it when the trust has changed.
func (d *Directory) Recheck(trust *collective.Trust, now time.Time) []Event {
	if d.foreign {
		d.relistAt(now) // a refused authority may be known now
	}
	events := d.dropThose(func(e *entry) (why string, yes bool) {
		if err := trust.Check(e.Holder, now); err != nil {
			return err.Error(), true
		}
		return "", false
	})
	maps.DeleteFunc(d.waiting, func(_ string, e *entry) bool { return trust.Check(e.Holder, now) != nil })
	return append(events, d.retry()...)
}

func (d *Directory) dropThose(is func(*entry) (why string, yes bool)) (events []Event) {
	reasons := map[string]string{}
	var names []string // sorted, so that the result is deterministic
	for name, e := range d.entries {
		if why, yes := is(e); yes {
			names, reasons[name] = append(names, name), why
		}
	}
	slices.Sort(names)
	for _, name := range names {
		events = append(events, d.drop(name, reasons[name]))
	}
	return events
}

// relistAt makes the first Tick at or after that time request everything.
func (d *Directory) relistAt(at time.Time) {
	if d.relist.IsZero() || at.Before(d.relist) {
		d.relist = at
	}
}

func (d *Directory) startOver() {
	d.relist, d.foreign = time.Time{}, false
	d.revision, d.doubt = 0, true
	d.listing.id = 0
}
