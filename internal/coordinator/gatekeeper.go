package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
)

const (
	// How often one member may change its record: each change goes to all.
	recordBurst = 20
	recordEvery = 15 * time.Second

	storeWithin = 5 * time.Second
	// keepEnded is for how long a record that has ended stays in the store. Members drop it by themselves;
	// a coordinator whose clock is wrong for a while must not.
	keepEnded = 24 * time.Hour
)

// gatekeeper judges members' records and keeps them in a bucket of the bus. What has come back from there
// counts: the bucket's revisions are those of the feed, also when several coordinators write. Its own copy
// of the directory follows the feed as every member's does.
type gatekeeper struct {
	bucket *bus.Bucket
	trust  func() *collective.Trust
	// unshown are the addresses of a record that nobody has shown to be the member's; have is its record in the
	// directory, or nil.
	unshown  func(r, have *directory.Record) []netip.Addr
	now      func() time.Time
	log      *slog.Logger
	news     chan struct{}   // there is something to tell
	over     <-chan struct{} // another has taken its place; nil: never
	doubt    chan struct{}   // changes may be missing
	restored chan struct{}   // the store is an older one than this host has heard of

	judging sync.Mutex // held from judging a record until it is in our copy
	records *allowances

	mu        sync.Mutex
	journal   *directory.Journal // tells by itself, without mu
	directory *directory.Directory
	revisions map[string]uint64    // last of each name
	ends      map[string]time.Time // of each record
	applied   uint64
	waiters   map[chan struct{}]uint64 // who waits for which revision
	dirty     bool                     // the copy on disk is behind
}

func newGatekeeper(b *bus.Bucket, epoch uint64, trust func() *collective.Trust, unshown func(r, have *directory.Record) []netip.Addr, now func() time.Time, log *slog.Logger) *gatekeeper {
	return &gatekeeper{
		bucket: b, trust: trust, unshown: unshown, now: now, log: log, news: make(chan struct{}, 1), doubt: make(chan struct{}, 1), restored: make(chan struct{}, 1),
		records: newAllowances(recordBurst, recordEvery),
		journal: directory.NewJournal(epoch), directory: directory.New(directory.DefaultLimits()),
		revisions: map[string]uint64{}, ends: map[string]time.Time{}, waiters: map[chan struct{}]uint64{},
	}
}

// take judges a member's record, and returns when it is stored and on its way to all. It is not stored if there are
// addresses in it that are unshown.
func (g *gatekeeper) take(ctx context.Context, from string, data []byte) (r *directory.Record, unshown []netip.Addr, err error) {
	s, err := directory.DecodeRecord(data)
	if err != nil {
		return nil, nil, err
	}
	g.judging.Lock()
	defer g.judging.Unlock()
	r, have, last, err := g.judge(from, s)
	if err != nil || r == have {
		return r, nil, err
	}
	if unshown := g.unshown(r, have); len(unshown) > 0 {
		return r, unshown, nil
	}
	value, err := storedRecord(s)
	if err != nil {
		return nil, nil, err
	}
	if err := g.write(ctx, from, value, last); err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.records.spend(from, g.now())
	return r, nil, nil
}

// judge says whether a record may be stored, over which one and which revision. If it is there already, both are
// the same.
func (g *gatekeeper) judge(from string, s *directory.SignedRecord) (r, have *directory.Record, last uint64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if v, there := g.directory.Get(from); there {
		if have = &v.Record; v.Signed.Equal(s) {
			return have, have, 0, nil // the answer was lost
		}
	}
	now := g.now()
	v, err := g.directory.Judge(s, g.trust(), now)
	if err != nil {
		return nil, nil, 0, err
	}
	if v.Record.Name != from {
		return nil, nil, 0, fmt.Errorf("the record is that of %s: each member sends its own", v.Record.Name)
	}
	if !g.records.may(from, now) {
		return nil, nil, 0, fmt.Errorf("your record changes too often: at most once in %v; try again then", recordEvery)
	}
	return &v.Record, have, g.revisions[from], nil
}

// remove tells all that there is no record of a name any more.
func (g *gatekeeper) remove(ctx context.Context, name, why string) error {
	g.judging.Lock()
	defer g.judging.Unlock()
	g.mu.Lock()
	last, there := g.revisions[name]
	_, has := g.ends[name]
	g.mu.Unlock()
	if !there || !has {
		return nil // none was ever stored, or it is removed already
	}
	return g.write(ctx, name, storedRemoval(why), last)
}

// write changes the store, and returns when our copy has the change.
func (g *gatekeeper) write(ctx context.Context, name string, value []byte, last uint64) error {
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	revision, err := g.bucket.Update(ctx, name, value, last)
	if errors.Is(err, bus.ErrConflict) {
		poke(g.doubt)
		return fmt.Errorf("another coordinator is just changing the record of %s: try again", name)
	}
	if err != nil {
		return err
	}
	return g.wait(ctx, revision)
}

// wait returns when the feed has come that far.
func (g *gatekeeper) wait(ctx context.Context, revision uint64) error {
	g.mu.Lock()
	if g.applied >= revision {
		g.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	g.waiters[done] = revision
	g.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-g.over:
		return errStarting // it is stored; who asks again hears so
	case <-ctx.Done():
		g.mu.Lock()
		delete(g.waiters, done)
		g.mu.Unlock()
		poke(g.doubt)
		return fmt.Errorf("the change is stored, and does not come back: %w", ctx.Err())
	}
}

// apply takes what has come back from the store. Changes come in the order of revisions; those that are
// known come again after the connection was lost.
func (g *gatekeeper) apply(e bus.Entry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e.Revision <= g.applied {
		return
	}
	if err := g.enter(e); err != nil {
		g.log.Error("coordinator: the store holds what cannot be told", "key", e.Key, "revision", e.Revision, "err", err)
	}
	g.applied = e.Revision
	g.follow()
	for done, revision := range g.waiters {
		if revision <= g.applied {
			close(done)
			delete(g.waiters, done)
		}
	}
	poke(g.news)
}

func (g *gatekeeper) enter(e bus.Entry) error {
	if e.Key == epochKey {
		return nil
	}
	s, why, err := readStored(e)
	if err != nil {
		return err
	}
	g.revisions[e.Key] = e.Revision
	if s == nil {
		delete(g.ends, e.Key)
		return g.journal.Remove(e.Revision, e.Key, why)
	}
	g.ends[e.Key] = g.now() // until our copy knows better
	return g.journal.Put(e.Revision, e.Key, s)
}

// follow brings our copy up to the journal. The caller holds mu.
func (g *gatekeeper) follow() {
	now, trust := g.now(), g.trust()
	g.directory.Doubt()
	for range 1 << 16 { // as many messages as the largest directory has
		ask, behind := g.directory.Behind()
		if !behind {
			break
		}
		for _, e := range g.directory.Answer(g.journal.Answer(ask), trust, now) {
			if e.New != nil {
				g.ends[e.Name] = e.New.Until
			}
		}
	}
	g.dirty = true
}

// answer is what a member lacks.
func (g *gatekeeper) answer(data []byte) ([]byte, error) {
	ask, err := directory.DecodeAsk(data)
	if err != nil {
		return nil, err
	}
	b := g.journal.Answer(ask)
	return b.Encode()
}

// retrust drops from our copy who is no member any more, or takes who is one now.
func (g *gatekeeper) retrust() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.directory.Recheck(g.trust(), g.now())
	g.dirty = true
}

// tick lets time pass in our copy and says whose record ended long ago.
func (g *gatekeeper) tick() (over []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.directory.Tick(now)
	if _, behind := g.directory.Behind(); behind {
		g.follow()
	}
	g.records.sweep(now)
	for name, end := range g.ends {
		if now.After(end.Add(keepEnded)) {
			over = append(over, name)
		}
	}
	return over
}

// view lets f read our copy.
func (g *gatekeeper) view(f func(*directory.Directory)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g.directory)
}
