package directory

import (
	"errors"
	"maps"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// EventKind is what happened to a member's record.
type EventKind string

// The kinds. Renewed: nothing but its time has changed.
const (
	Joined  EventKind = "joined"
	Changed EventKind = "changed"
	Renewed EventKind = "renewed"
	Left    EventKind = "left"
)

// Event is what became of one member.
type Event struct {
	Kind EventKind
	Name string
	Old  *Verified // nil if it joined
	New  *Verified // nil if it left
	Why  string    // it left, in words
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

// Apply takes a batch as told to all members. One that does not follow on what is there changes nothing:
// Behind says then what to ask for. Neither does any while a listing is under way: the listing leaves out
// who was removed before it began, so a batch from before could bring back somebody for good.
func (d *Directory) Apply(b Batch, trust *collective.Trust, now time.Time) []Event {
	if !d.noteHead(b) || b.Listing != 0 || d.listing.id != 0 {
		return nil
	}
	return d.follow(b, trust, now)
}

// Answer takes a batch as answer to what Behind said.
func (d *Directory) Answer(b Batch, trust *collective.Trust, now time.Time) []Event {
	switch {
	case b.Listing != 0 && b.After == 0:
		d.beginListing(b)
	case b.Listing != d.listing.id:
		return nil // to what was asked before the clock was set
	}
	d.doubt = false
	if !d.noteHead(b) {
		return nil
	}
	return d.follow(b, trust, now)
}

// noteHead learns from a batch how far the store is. It reports whether the store is the one that is
// followed.
func (d *Directory) noteHead(b Batch) bool {
	if b.Epoch != d.epoch {
		d.doubt = true
		return false
	}
	d.head = max(d.head, b.Head)
	return true
}

// follow takes a batch that has no gap before it and tells something new.
func (d *Directory) follow(b Batch, trust *collective.Trust, now time.Time) []Event {
	if b.After > d.revision || b.Revision < d.revision {
		return nil
	}
	return d.take(b, trust, now)
}

// Behind says what to ask for, if anything is missing.
func (d *Directory) Behind() (Ask, bool) {
	return Ask{Epoch: d.epoch, After: d.revision, Listing: d.listing.id}, d.doubt || d.revision < d.head || d.listing.id != 0
}

// Doubt says that something may have been missed without a trace: the connection was lost.
func (d *Directory) Doubt() { d.doubt = true }

func (d *Directory) beginListing(b Batch) {
	d.listing = listing{id: b.Listing, mark: d.listing.mark + 1}
	if d.epoch != b.Epoch {
		d.epoch, d.head = b.Epoch, 0
	}
	d.revision = 0
}

// take applies all of a batch that follows.
func (d *Directory) take(b Batch, trust *collective.Trust, now time.Time) (events []Event) {
	for _, c := range b.Changes {
		switch _, there := d.entries[c.Name]; {
		case c.Revision <= d.revision: // came with another batch
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

// seenAgain saves verifying what is there already, in a listing or after a new start.
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
		return // cannot be: all errors of judge and put are
	}
	d.refused[refusal.Reason]++
	d.last = err
	switch refusal.Reason {
	case NotYet:
		d.relistAt(now.Round(0).Add(relistAfter))
	case Foreign:
		d.foreign = true
	case Older:
		// The store has an older one than we do, as it has begun anew. That is no reason to forget ours.
		if e := d.entries[refusal.Name]; e != nil {
			e.epoch, e.mark = d.epoch, d.listing.mark
		}
	}
}

// endListing drops who was in no part of it. A store that has begun anew knows less than we do: who is
// known from before stays until its record ends.
func (d *Directory) endListing() []Event {
	d.listing.id = 0
	gone := func(e *entry) bool { return e.epoch == d.epoch && e.mark != d.listing.mark }
	maps.DeleteFunc(d.waiting, func(_ string, e *entry) bool { return gone(e) })
	return d.dropThose(func(e *entry) (why string, yes bool) {
		return "the coordinators no longer know it", gone(e)
	})
}
