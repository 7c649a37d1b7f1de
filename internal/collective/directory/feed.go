package directory

import (
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/collective"
)

// The feed. The coordinators' store gives every change a revision, a growing number, and keeps the last change of
// each name. So "all changes after revision N", in the order of revisions, announces a change, closes a gap and,
// with N = 0, lists everything. An epoch identifies a store: in another epoch the numbers start again.

// Batch contains all changes after one revision, up to another. It may be empty, to announce only the store's
// head.
type Batch struct {
	Epoch    uint64 // never 0
	After    uint64
	Revision uint64 // of the last change, at least After
	Head     uint64 // the last revision in the store, at least Revision
	// Listing is not 0 in parts of a listing: it is the Head when the first part was made, plus one. Members that
	// are in no part of a listing no longer exist.
	Listing uint64
	Changes []Change // in the order of revisions
}

// Change is a new record, or the removal of one.
type Change struct {
	Revision uint64
	Signed   *SignedRecord // nil: Name was removed
	Name     string        // of the removed member; empty if Signed is set
	Why      string        // the reason for a removal
}

// Ask requests all changes after a revision. With an Epoch of 0 it requests a listing.
type Ask struct {
	Epoch   uint64
	After   uint64
	Listing uint64 // Batch.Listing of the last received part; 0: not within a listing
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
