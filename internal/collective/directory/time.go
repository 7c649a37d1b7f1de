package directory

import (
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// What changes by itself: time goes on, and trust changes. Both may also turn out to have been wrong when
// a record was refused or dropped. As coordinators don't send it again, everything is asked for again.

// relistAfter is how long to wait after a record that is not valid yet.
const relistAfter = time.Hour

// Tick removes records that have ended. It is to be called every few seconds, as it also notices when
// this host's clock is set.
func (d *Directory) Tick(now time.Time) []Event {
	now = now.Round(0) // the clock on the wall is meant
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

// Recheck removes who is no member any more. It is to be called when trust has changed.
func (d *Directory) Recheck(trust *collective.Trust, now time.Time) []Event {
	if d.foreign {
		d.relistAt(now) // it may be known now
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
	var names []string // sorted, so that what happens does not depend on chance
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

// relistAt has the next Tick at that time or later ask for everything.
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
