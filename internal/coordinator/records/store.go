// Package records keeps the directory's store: the members' records, in a bucket of the bus. feed.go judges new
// records, writes them to the bucket, and applies changes that come back from it. store.go announces these to all
// members, and keeps a copy in a file. bucket.go fills the bucket from that copy if it has lost changes.
package records

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/coordinator/loop"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/ratelimit"
)

const (
	// announceEvery is the time for which changes are gathered into one message.
	announceEvery = 250 * time.Millisecond
	// headEvery bounds the time until a member learns that it has missed a change.
	headEvery   = time.Minute
	flushWithin = 10 * time.Second
	retryEvery  = 5 * time.Second
	watchPause  = 100 * time.Millisecond
	tickEvery   = 10 * time.Second
	// saveRate is the average rate of writing the copy, in bytes a second, within the bounds below.
	saveRate = 20 << 10
	// soonestSave and latestSave bound the time between two writes of the copy.
	soonestSave = 10 * time.Second
	latestSave  = 10 * time.Minute
)

var (
	// errLostChanges ends the work with a bucket that has lost changes.
	errLostChanges = errors.New("the directory's store has lost changes")
	// errRestored ends the work with a bucket that is older than what this host has heard.
	errRestored = errors.New("the directory's store is older than what this host knows of it")
)

// Bus is the Store's access to the bus.
type Bus interface {
	Bucket(ctx context.Context, name string, replicas int) (*bus.Bucket, error)
	TellAll(topic string, data []byte) error
	Flush(ctx context.Context) error
	// Damage lists what the embedded server found damaged when it started.
	Damage() []string
}

// Config holds what a Store needs.
type Config struct {
	Identity *collective.Identity
	Bus      Bus
	Replicas int    // of the bucket
	File     string // of the copy
	// Unshown returns the addresses in r that are not known to be the member's. Have is its record in the directory,
	// or nil.
	Unshown func(r, have *directory.Record) []netip.Addr
	// Opened gets a value each time the bucket has become available.
	Opened chan<- struct{}
	Clock  func() time.Time
	Log    *slog.Logger
}

// Store keeps the records while it runs. It is safe for concurrent use.
type Store struct {
	config Config
	feed   atomic.Pointer[feed] // nil while the bucket is not available
}

// NewStore returns a store that does not run yet.
func NewStore(c Config) *Store { return &Store{config: c} }

// View calls read with the directory, and reports whether there is one.
func (s *Store) View(read func(*directory.Directory)) bool {
	f := s.feed.Load()
	if f != nil {
		f.view(read)
	}
	return f != nil
}

// Shown returns a member's certificate as its record in the directory shows it.
func (s *Store) Shown(name string) (m collective.Member, there bool) {
	s.View(func(d *directory.Directory) {
		if v, has := d.Get(name); has {
			m, there = v.Holder, v.Holder.Name == name
		}
	})
	return m, there
}

// Take judges a member's record, and returns when it is stored and in the directory. A record with unshown addresses
// is not stored.
func (s *Store) Take(ctx context.Context, from string, data []byte) (r *directory.Record, unshown []netip.Addr, err error) {
	f := s.feed.Load()
	if f == nil {
		return nil, nil, ErrStarting
	}
	return f.take(ctx, from, data)
}

// Remove removes a member's record.
func (s *Store) Remove(ctx context.Context, name, why string) error {
	f := s.feed.Load()
	if f == nil {
		return ErrStarting
	}
	return f.remove(ctx, name, why)
}

// Answer returns the changes that a member requests. If this host's own agent knows changes that the store lacks, an
// older copy of the store was restored. Other members are not trusted about that.
func (s *Store) Answer(from string, data []byte) ([]byte, error) {
	f := s.feed.Load()
	if f == nil {
		return nil, ErrStarting
	}
	ask, err := directory.DecodeAsk(data)
	if err != nil {
		return nil, err
	}
	head := f.journal.Head()
	if from == s.config.Identity.Name() && ask.Epoch == head.Epoch && ask.After > head.Head {
		loop.Wake(f.older)
	}
	b := f.journal.Answer(ask)
	return b.Encode()
}

// Recheck applies this host's changed trust to the directory.
func (s *Store) Recheck() {
	if f := s.feed.Load(); f != nil {
		f.recheck()
	}
}

// Resync reads the bucket again, as changes may have been missed.
func (s *Store) Resync() {
	if f := s.feed.Load(); f != nil {
		loop.Wake(f.resync)
	}
}

// Run keeps the records until ctx ends. When the bucket fails, it is opened again.
func (s *Store) Run(ctx context.Context) {
	restored := false
	for again := false; ctx.Err() == nil; again = true {
		err := s.run(ctx, again, restored)
		restored = errors.Is(err, errRestored)
		s.feed.Store(nil)
		if ctx.Err() != nil {
			return
		}
		s.config.Log.Warn("coordinator: the directory's store is not available, trying again", "err", err)
		loop.Wait(ctx, retryEvery, nil)
	}
}

// run opens the bucket and works with it until it fails.
func (s *Store) run(ctx context.Context, again, restored bool) error {
	b, epoch, err := s.open(ctx, again, restored)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	f := s.newFeed(b, epoch, ctx.Done())
	var running sync.WaitGroup
	var first []bus.Entry
	loaded := false
	take := func(e bus.Entry) {
		if loaded {
			f.apply(e)
		} else {
			first = append(first, e)
		}
	}
	begin := func() {
		if loaded {
			return
		}
		loaded = true
		f.load(first)
		first = nil
		s.feed.Store(f)
		loop.Wake(s.config.Opened)
		running.Go(func() { s.announce(ctx, f, epoch) })
		running.Go(func() { stop(s.keep(ctx, f)) })
		running.Go(func() {
			if loop.Wait(ctx, time.Duration(math.MaxInt64), f.older) {
				stop(errRestored)
			}
		})
	}
	for ctx.Err() == nil {
		if err := f.watch(ctx, take, begin); err != nil && !loaded {
			stop(err)
		}
		loop.Wait(ctx, watchPause, nil)
	}
	running.Wait()
	return context.Cause(ctx)
}

func (s *Store) newFeed(b *bus.Bucket, epoch uint64, over <-chan struct{}) *feed {
	return &feed{
		bucket: b, trust: s.config.Identity.Trust, unshown: s.config.Unshown, clock: s.config.Clock, log: s.config.Log,
		over: over, news: make(chan struct{}, 1), resync: make(chan struct{}, 1), older: make(chan struct{}, 1),
		changes: ratelimit.New(Burst, changeEvery),
		journal: directory.NewJournal(epoch), directory: directory.New(directory.DefaultLimits()),
		revisions: map[string]uint64{}, ends: map[string]time.Time{}, waiters: map[chan struct{}]uint64{},
	}
}

// watch follows the bucket until that fails, or until changes may have been missed: a watch notices late that its
// server is gone. Known changes that come again are ignored.
func (f *feed) watch(ctx context.Context, take func(bus.Entry), current func()) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if loop.Wait(ctx, time.Duration(math.MaxInt64), f.resync) {
			stop()
		}
	}()
	return f.bucket.Watch(ctx, take, current)
}

// announce sends changes to all members, and now and then the number of the last one.
func (s *Store) announce(ctx context.Context, f *feed, epoch uint64) {
	sent := f.journal.Head().Head
	next := time.Now()
	for ctx.Err() == nil {
		b := f.journal.Answer(directory.Ask{Epoch: epoch, After: sent})
		switch {
		case b.Listing != 0:
			sent = b.Head // so many changes were missed that members have to ask
			continue
		case b.Revision == sent && time.Now().Before(next):
			loop.Wait(ctx, time.Until(next), f.news)
			loop.Wait(ctx, announceEvery, nil) // others may follow
			continue
		}
		data, err := b.Encode()
		if err == nil {
			err = s.config.Bus.TellAll(enrol.TopicDirectory, data)
		}
		if err != nil {
			s.config.Log.Debug("coordinator: changes of the directory cannot be announced yet", "err", err)
			loop.Wait(ctx, retryEvery, nil)
			continue
		}
		sent, next = b.Revision, time.Now().Add(headEvery)
		s.pace(ctx)
	}
}

// pace waits until the server has delivered a message to all members, and then once more for the same time. So half of
// the server's time is left for other things, such as the bucket, and changes meanwhile go into one message. Without
// pace, many hosts that join a large collective cause more messages than the server can send, and they fill its memory.
func (s *Store) pace(ctx context.Context) {
	start := time.Now()
	brief, cancel := context.WithTimeout(ctx, flushWithin)
	err := s.config.Bus.Flush(brief)
	cancel()
	if err != nil {
		s.config.Log.Debug("coordinator: the bus's server is slow", "err", err)
	}
	loop.Wait(ctx, time.Since(start), nil)
}

// keep removes ended records and saves the copy, until the bucket cannot be used any more. It returns the reason.
func (s *Store) keep(ctx context.Context, f *feed) error {
	saved := time.Now()
	pause := soonestSave
	for loop.Wait(ctx, tickEvery, nil) {
		for _, name := range f.tick() {
			if err := f.remove(ctx, name, "its record ended long ago"); err != nil {
				s.config.Log.Debug("coordinator: an ended record cannot be removed yet", "member", name, "err", err)
			}
		}
		if time.Since(saved) >= pause {
			pause = min(max(s.save(f), soonestSave), latestSave)
			saved = time.Now()
		}
		if err := f.compare(ctx, f.bucket.Last); err != nil {
			return err
		}
	}
	s.save(f)
	return ctx.Err()
}

// save writes the copy, and returns the time to wait before the next write.
func (s *Store) save(f *feed) time.Duration {
	data, changed, err := f.changed()
	if !changed {
		return 0
	}
	if err == nil {
		err = directory.Save(s.config.File, data)
	}
	if err != nil {
		s.config.Log.Warn("coordinator: its copy of the directory cannot be saved", "err", err)
	}
	return time.Duration(len(data)) * time.Second / saveRate
}
