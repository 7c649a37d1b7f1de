package directory

import (
	"errors"
	"maps"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// EventKind is the kind of a change of a member's record.
type EventKind string

// The kinds of events. Renewed means that only its times have changed.
const (
	Joined  EventKind = "joined"
	Changed EventKind = "changed"
	Renewed EventKind = "renewed"
	Left    EventKind = "left"
)

// Event describes a change of one member.
type Event struct {
	Kind EventKind
	Name string
	Old  *Verified // nil if it joined
	New  *Verified // nil if it left
	Why  string    // the reason why it left
}

func newEvent(old, now *Verified) Event {
	e := Event{Kind: Changed, Name: now.Record.Name, Old: old, New: now}
	switch {
	case old == nil:
		e.Kind = Joined
	case old.Record.SameButTime(now.Record):
		e.Kind = Renewed
	}
	return e
}

// Apply applies a batch that was sent to all members. A batch with a gap before it changes nothing; Behind then
// returns what to ask for. While a listing is under way, no batch changes anything: a listing omits members that
// were removed before it began, so an earlier batch could restore a removed member permanently.
func (d *Directory) Apply(b Batch, trust *collective.Trust, now time.Time) []Event {
	if !d.noteHead(b) || b.Listing != 0 || d.listing.id != 0 {
		return nil
	}
	return d.follow(b, trust, now)
}

// Answer applies a batch that answers the Ask from Behind.
func (d *Directory) Answer(b Batch, trust *collective.Trust, now time.Time) []Event {
	switch {
	case b.Listing != 0 && b.After == 0:
		d.beginListing(b)
	case b.Listing != d.listing.id:
		return nil // it answers an Ask from before the clock was set
	}
	d.doubt = false
	if !d.noteHead(b) {
		return nil
	}
	return d.follow(b, trust, now)
}

// noteHead updates the store's known head from a batch. It reports whether the batch is from the store that d
// follows.
func (d *Directory) noteHead(b Batch) bool {
	if b.Epoch != d.epoch {
		d.doubt = true
		return false
	}
	d.head = max(d.head, b.Head)
	return true
}

// follow applies a batch if it has no gap before it and contains something new.
func (d *Directory) follow(b Batch, trust *collective.Trust, now time.Time) []Event {
	if b.After > d.revision || b.Revision < d.revision {
		return nil
	}
	return d.take(b, trust, now)
}

// Behind returns the request for missing changes, and reports whether there is any.
func (d *Directory) Behind() (Ask, bool) {
	return Ask{Epoch: d.epoch, After: d.revision, Listing: d.listing.id}, d.doubt || d.revision < d.head || d.listing.id != 0
}

// Doubt records that batches may have been missed unnoticed, because the connection was lost.
func (d *Directory) Doubt() { d.doubt = true }

func (d *Directory) beginListing(b Batch) {
	d.listing = listing{id: b.Listing, mark: d.listing.mark + 1}
	if d.epoch != b.Epoch {
		d.epoch, d.head = b.Epoch, 0
	}
	d.revision = 0
}

// take applies a batch.
func (d *Directory) take(b Batch, trust *collective.Trust, now time.Time) (events []Event) {
	for _, c := range b.Changes {
		switch _, there := d.entries[c.Name]; {
		case c.Revision <= d.revision: // already applied with another batch
		case c.Signed != nil:
			events = append(events, d.takeRecord(c, trust, now)...)
		default:
			delete(d.waiting, c.Name)
			if there {
				events = append(events, d.drop(c.Name, c.Why))
			}
		}
	}
	d.revision = b.Revision
	if d.listing.id != 0 && d.revision >= b.Head {
		events = append(events, d.endListing()...)
	}
	return append(events, d.retry()...)
}

func (d *Directory) takeRecord(c Change, trust *collective.Trust, now time.Time) []Event {
	if d.seenAgain(c) {
		return nil
	}
	v, err := d.judge(c.Signed, trust, now)
	if err != nil {
		d.count(err, now)
		return nil
	}
	e := &entry{Verified: v, epoch: d.epoch, revision: c.Revision, mark: d.listing.mark}
	events, err := d.put(e)
	if err != nil {
		d.count(err, now)
		d.waitFor(e)
	}
	return events
}

// seenAgain reports whether d has the record already, in a listing or after a restart, so that it need not be
// verified again.
func (d *Directory) seenAgain(c Change) bool {
	r, err := parseRecord(c.Signed.Payload)
	if err != nil {
		return false
	}
	e := d.entries[r.Name]
	if e == nil || !e.Signed.Equal(c.Signed) {
		return false
	}
	e.epoch, e.revision, e.mark = d.epoch, c.Revision, d.listing.mark
	return true
}

func (d *Directory) count(err error, now time.Time) {
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok {
		return // cannot happen: judge and put return only refusals
	}
	d.refused[refusal.Reason]++
	d.last = err
	switch refusal.Reason {
	case NotYet:
		d.relistAt(now.Round(0).Add(relistAfter))
	case Foreign:
		d.foreign = true
	case Older:
		// The store has started again and has an older record than we do. Keep ours.
		if e := d.entries[refusal.Name]; e != nil {
			e.epoch, e.mark = d.epoch, d.listing.mark
		}
	}
}

// endListing removes members that were in no part of the listing. If the store has started again, it knows less
// than we do; then members known from before stay until their record expires.
func (d *Directory) endListing() []Event {
	d.listing.id = 0
	gone := func(e *entry) bool { return e.epoch == d.epoch && e.mark != d.listing.mark }
	maps.DeleteFunc(d.waiting, func(_ string, e *entry) bool { return gone(e) })
	return d.dropThose(func(e *entry) (why string, yes bool) {
		return "the coordinators no longer know it", gone(e)
	})
}
