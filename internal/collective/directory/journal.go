package directory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/detour-collective/dcol/internal/collective"
)

// maxRemoved is the number of removals that a journal remembers. A member that missed more gets a listing.
const maxRemoved = 4096

// Journal holds the last change of each name, in the order of revisions. A coordinator answers members from it. It
// verifies nothing: its caller has done so. Its methods may be called from any goroutine.
type Journal struct {
	epoch    uint64
	remember int // removals
	most     int // bytes of an answer

	mu      sync.RWMutex
	head    uint64
	floor   uint64  // removals up to this revision are forgotten
	items   []*item // revisions grow
	byName  map[string]*item
	removed int
}

type item struct {
	Change
	over bool // superseded by a later change of the name
}

// NewJournal returns a journal for an empty store. The epoch identifies the store and is not 0. A store that lost
// changes must get a new epoch.
func NewJournal(epoch uint64) *Journal {
	return &Journal{epoch: epoch, remember: maxRemoved, most: MaxMessage, byName: map[string]*item{}}
}

// Put adds a new record of a name. The revision must be higher than all before.
func (j *Journal) Put(revision uint64, name string, s *SignedRecord) error {
	if err := s.checkSize(); err != nil {
		return fmt.Errorf("the record of %s: %w", name, err)
	}
	return j.change(name, Change{Revision: revision, Signed: s})
}

// Remove adds the removal of a name's record. The revision must be higher than all before.
func (j *Journal) Remove(revision uint64, name, why string) error {
	why = strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")
	return j.change(name, Change{Revision: revision, Name: name, Why: why})
}

func (j *Journal) change(name string, c Change) error {
	if err := collective.CheckName(name); err != nil {
		return err // no member could decode an answer with it
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if c.Revision <= j.head {
		return fmt.Errorf("revision %d of %s after %d", c.Revision, name, j.head)
	}
	if old := j.byName[name]; old != nil {
		j.supersede(old)
	}
	now := &item{Change: c}
	j.head, j.byName[name] = c.Revision, now
	j.items = append(j.items, now)
	if c.Signed == nil {
		j.removed++
	}
	if j.removed > j.remember {
		j.forgetRemovals(j.remember/2 + 1)
	}
	if len(j.items) > 2*len(j.byName)+64 {
		j.items = slices.DeleteFunc(j.items, func(i *item) bool { return i.over })
	}
	return nil
}

func (j *Journal) supersede(i *item) {
	if i.Signed == nil {
		j.removed--
	}
	i.over, i.Signed = true, nil
}

func (j *Journal) forgetRemovals(n int) {
	for _, i := range j.items {
		if n == 0 {
			return
		}
		if !i.over && i.Signed == nil {
			delete(j.byName, i.Name)
			j.supersede(i)
			j.floor = i.Revision
			n--
		}
	}
}

// Head returns an empty batch with the store's head. It is sent to all regularly, so that members that missed the
// last change notice it.
func (j *Journal) Head() Batch {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return Batch{Epoch: j.epoch, After: j.head, Revision: j.head, Head: j.head}
}

// Answer returns the requested changes, as many as fit into one message. To announce new changes to all, request those
// after the last announced batch.
func (j *Journal) Answer(a Ask) Batch {
	j.mu.RLock()
	defer j.mu.RUnlock()
	b := Batch{Epoch: j.epoch, Head: j.head, After: min(a.After, j.head), Listing: a.Listing}
	knows := a.After // the asking member knows removals up to here
	if a.Listing != 0 {
		knows = a.Listing - 1 // members removed since were in no part
	}
	if a.Epoch != j.epoch || knows < j.floor {
		b.After, b.Listing = 0, j.head+1
	}
	from, _ := slices.BinarySearchFunc(j.items, b.After+1, func(i *item, r uint64) int { return cmp.Compare(i.Revision, r) })
	b.Revision = j.head
	var size sizer
	for _, i := range j.items[from:] {
		if i.over || i.Signed == nil && i.Revision < b.Listing {
			continue // a listing has existing members, and only removals since it began
		}
		if size.add(i.Change) > j.most && len(b.Changes) > 0 {
			b.Revision = b.Changes[len(b.Changes)-1].Revision
			break
		}
		b.Changes = append(b.Changes, i.Change)
	}
	return b
}
