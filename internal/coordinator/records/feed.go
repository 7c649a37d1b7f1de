package records

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/coordinator/loop"
	"github.com/detour-collective/dcol/internal/ratelimit"
)

// One member may change its record Burst times, then once every changeEvery: each change goes to all members.
const (
	Burst       = 20
	changeEvery = 15 * time.Second
)

const (
	storeWithin = 5 * time.Second
	// keepEnded is the time for which a record is kept after its end. Members drop it by themselves at once. The
	// coordinator does not, because its clock may be wrong for a while.
	keepEnded = 24 * time.Hour
)

// ErrStarting is returned until the directory's store has been read.
var ErrStarting = errors.New("this coordinator is starting: ask again in a moment")

// feed judges members' records and writes them to the bucket. A change takes effect when it has come back from there.
// So the feed's revisions are the bucket's, even if several coordinators write. The directory follows the feed like
// every member's directory.
type feed struct {
	bucket *bus.Bucket
	trust  func() *collective.Trust
	// unshown returns the addresses in r that are not known to be the member's. Have is its record in the directory,
	// or nil.
	unshown func(r, have *directory.Record) []netip.Addr
	clock   func() time.Time
	log     *slog.Logger
	over    <-chan struct{} // closed when another feed takes over
	news    chan struct{}   // has a value when there are changes to announce
	resync  chan struct{}   // has a value when changes may have been missed
	older   chan struct{}   // has a value when the store turns out to be older than a change that this host has heard of

	judging sync.Mutex // held from judging a record until it is in the directory
	changes *ratelimit.Limits

	mu        sync.Mutex
	journal   *directory.Journal // safe without mu
	directory *directory.Directory
	revisions map[string]uint64    // last one of each name
	ends      map[string]time.Time // of each record
	applied   uint64
	waiters   map[chan struct{}]uint64 // revisions that are waited for
	dirty     bool                     // the file is older than the directory
}

// take judges a member's record, and returns when it is stored and in the directory. A record with unshown addresses
// is not stored.
func (f *feed) take(ctx context.Context, from string, data []byte) (r *directory.Record, unshown []netip.Addr, err error) {
	s, err := directory.DecodeRecord(data)
	if err != nil {
		return nil, nil, err
	}
	f.judging.Lock()
	defer f.judging.Unlock()
	r, have, last, err := f.judge(from, s)
	if err != nil || r == have {
		return r, nil, err
	}
	if unshown := f.unshown(r, have); len(unshown) > 0 {
		return r, unshown, nil
	}
	value, err := storedRecord(s)
	if err != nil {
		return nil, nil, err
	}
	if err := f.write(ctx, from, value, last); err != nil {
		return nil, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes.Take(from, f.clock())
	return r, nil, nil
}

// judge decides whether a record may be stored, and returns the record and the revision it replaces. If it is stored
// already, r and have are the same.
func (f *feed) judge(from string, s *directory.SignedRecord) (r, have *directory.Record, last uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v, there := f.directory.Get(from); there {
		if have = &v.Record; v.Signed.Equal(s) {
			return have, have, 0, nil // the answer was lost
		}
	}
	now := f.clock()
	v, err := f.directory.Judge(s, f.trust(), now)
	if err != nil {
		return nil, nil, 0, err
	}
	if v.Record.Name != from {
		return nil, nil, 0, fmt.Errorf("the record belongs to %s: a member may send only its own", v.Record.Name)
	}
	if !f.changes.May(from, now) {
		return nil, nil, 0, fmt.Errorf("your record changes too often: at most once in %v; try again then", changeEvery)
	}
	return &v.Record, have, f.revisions[from], nil
}

// remove removes a member's record.
func (f *feed) remove(ctx context.Context, name, why string) error {
	f.judging.Lock()
	defer f.judging.Unlock()
	f.mu.Lock()
	last, there := f.revisions[name]
	_, has := f.ends[name]
	f.mu.Unlock()
	if !there || !has {
		return nil // none was ever stored, or it is removed already
	}
	return f.write(ctx, name, storedRemoval(why), last)
}

// write changes the bucket, and returns when the directory has the change.
func (f *feed) write(ctx context.Context, name string, value []byte, last uint64) error {
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	revision, err := f.bucket.Update(ctx, name, value, last)
	if errors.Is(err, bus.ErrConflict) {
		loop.Wake(f.resync)
		return fmt.Errorf("another coordinator is just changing the record of %s: try again", name)
	}
	if err != nil {
		return err
	}
	return f.wait(ctx, revision)
}

// wait returns when the feed has reached a revision.
func (f *feed) wait(ctx context.Context, revision uint64) error {
	f.mu.Lock()
	if f.applied >= revision {
		f.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	f.waiters[done] = revision
	f.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-f.over:
		return ErrStarting // the change is stored: a member that asks again learns so
	case <-ctx.Done():
		f.mu.Lock()
		delete(f.waiters, done)
		f.mu.Unlock()
		loop.Wake(f.resync)
		return fmt.Errorf("the change is stored, but was not confirmed: %w", ctx.Err())
	}
}

// load takes everything in the bucket.
func (f *feed) load(all []bus.Entry) {
	slices.SortFunc(all, func(a, b bus.Entry) int { return cmp.Compare(a.Revision, b.Revision) })
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range all {
		f.enter(e)
		f.applied = max(f.applied, e.Revision)
	}
	f.follow()
}

// apply takes a change that has come back from the bucket. Changes come in the order of their revisions. After the
// connection was lost, known ones come again.
func (f *feed) apply(e bus.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.Revision <= f.applied {
		return
	}
	f.enter(e)
	f.applied = e.Revision
	f.follow()
	for done, revision := range f.waiters {
		if revision <= f.applied {
			close(done)
			delete(f.waiters, done)
		}
	}
	loop.Wake(f.news)
}

// enter puts a change into the journal. The caller holds mu.
func (f *feed) enter(e bus.Entry) {
	if e.Key == epochKey {
		return
	}
	s, why, err := readStored(e)
	switch {
	case err != nil:
	case s == nil:
		f.revisions[e.Key] = e.Revision
		delete(f.ends, e.Key)
		err = f.journal.Remove(e.Revision, e.Key, why)
	default:
		f.revisions[e.Key] = e.Revision
		f.ends[e.Key] = f.clock() // until the directory knows better
		err = f.journal.Put(e.Revision, e.Key, s)
	}
	if err != nil {
		f.log.Error("coordinator: the directory's store has an entry that cannot be used", "key", e.Key, "revision", e.Revision, "err", err)
	}
}

// follow brings the directory up to the journal. The caller holds mu.
func (f *feed) follow() {
	now, trust := f.clock(), f.trust()
	f.directory.Doubt()
	for range 1 << 16 { // as many messages as the largest directory has
		ask, behind := f.directory.Behind()
		if !behind {
			break
		}
		for _, e := range f.directory.Answer(f.journal.Answer(ask), trust, now) {
			if e.New != nil {
				f.ends[e.Name] = e.New.Until
			}
		}
	}
	f.dirty = true
}

// recheck applies changed trust to the directory.
func (f *feed) recheck() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.directory.Recheck(f.trust(), f.clock())
	f.dirty = true
}

// tick lets time pass in the directory, and returns the names of records that ended long ago.
func (f *feed) tick() (over []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock()
	f.directory.Tick(now)
	if _, behind := f.directory.Behind(); behind {
		f.follow()
	}
	for name, end := range f.ends {
		if now.After(end.Add(keepEnded)) {
			over = append(over, name)
		}
	}
	return over
}

// view calls read with the directory.
func (f *feed) view(read func(*directory.Directory)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	read(f.directory)
}

// changed returns the directory for its file, if it has changed since the last call.
func (f *feed) changed() (data []byte, changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.dirty {
		return nil, false, nil
	}
	f.dirty = false
	data, err = f.directory.Encode()
	return data, true, err
}

// compare returns an error if the bucket has fewer changes than it had. Changes that arrive while the bucket is asked
// do not matter: when many members join, there always are some.
func (f *feed) compare(ctx context.Context, last func(context.Context) (uint64, error)) error {
	f.mu.Lock()
	applied := f.applied
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	if at, err := last(ctx); err == nil && at < applied {
		return fmt.Errorf("%w: it is at %d, and was at %d", errLostChanges, at, applied)
	}
	return nil
}
