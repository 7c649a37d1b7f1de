package directory

import (
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/collective"
)

// The feed. The coordinators' store gives every change a revision, a number that grows, and keeps the
// last change of each name. So "all that has changed after revision N", in the order of revisions, is at
// once what a change is told with, what closes a gap and, from 0, a listing of everything. An epoch is
// the life of one store: with another epoch, the numbers have begun anew.

// Batch is all that has changed after one revision up to another; nothing, in a message that only says
// how far the store is.
type Batch struct {
	Epoch    uint64 // never 0
	After    uint64
	Revision uint64 // up to which, at least After
	Head     uint64 // the last revision in the store, at least Revision
	// Listing is not 0 in parts of a listing: the Head when its first part was made, plus one. Names
	// that are in no part of a listing exist no more.
	Listing uint64
	Changes []Change // in the order of revisions
}

// Change is a new record, or that there is none any more.
type Change struct {
	Revision uint64
	Signed   *SignedRecord // nil: Name has been removed
	Name     string        // who was removed; empty with a record, which says it itself
	Why      string        // why it was removed, in words
}

// Ask is what a member wants to know: all that has changed after a revision. An Epoch of 0 asks for a
// listing.
type Ask struct {
	Epoch   uint64
	After   uint64
	Listing uint64 // what the last part of a listing said; 0: not in the middle of one
}

const maxWhy = 200

func (b *Batch) check() error {
	if b.Epoch == 0 {
		return errors.New("no epoch")
	}
	if b.After > b.Revision || b.Revision > b.Head {
		return fmt.Errorf("the range from %d to %d of %d is invalid", b.After, b.Revision, b.Head)
	}
	last := b.After
	for _, c := range b.Changes {
		if c.Revision <= last || c.Revision > b.Revision {
			return fmt.Errorf("change %d after %d, up to %d", c.Revision, last, b.Revision)
		}
		last = c.Revision
		if (c.Signed != nil) == (c.Name != "") {
			return fmt.Errorf("change %d is neither a record nor a removal", c.Revision)
		}
		if c.Signed == nil {
			if err := collective.CheckName(c.Name); err != nil {
				return fmt.Errorf("change %d: %w", c.Revision, err)
			}
		}
		if len(c.Why) > maxWhy {
			return fmt.Errorf("change %d has a reason of %d bytes, but at most %d are allowed", c.Revision, len(c.Why), maxWhy)
		}
	}
	return nil
}
