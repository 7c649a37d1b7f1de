package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	// tellEvery gathers changes: a member hears of one within this time, and all members of many at once
	// with few messages.
	tellEvery = 250 * time.Millisecond
	// headEvery is how soon who has missed a change learns of it.
	headEvery   = time.Minute
	tellWithin  = 10 * time.Second
	retryEvery  = 5 * time.Second
	watchPause  = 100 * time.Millisecond
	tickEvery   = 10 * time.Second
	soonestSave = 10 * time.Second
	latestSave  = 10 * time.Minute
	saveRate    = 20 << 10 // bytes a second that the copy may cost a disk on average
)

// errLostChanges ends the work with a store that is not what it was.
var errLostChanges = errors.New("the directory's store has lost changes")

// runGate keeps a gatekeeper at work: it opens the store, and does so again when that fails.
func (c *Coordinator) runGate(ctx context.Context) {
	restored := false
	for again := false; ctx.Err() == nil; again = true {
		err := c.guard(ctx, again, restored)
		restored = errors.Is(err, errRestored)
		c.gate.Store(nil)
		if ctx.Err() != nil {
			return
		}
		c.config.Log.Warn("coordinator: the directory's store cannot be had, trying again", "err", err)
		every(ctx, retryEvery, nil)
	}
}

// guard works with one store as long as it is good.
func (c *Coordinator) guard(ctx context.Context, again, restored bool) error {
	e := c.engine.Load()
	b, epoch, err := c.openStored(ctx, e, again, restored)
	if err != nil {
		return err
	}
	g := newGatekeeper(b, epoch, c.config.Identity.Trust, c.unshown, c.now, c.config.Log)
	ctx, stop := context.WithCancelCause(ctx)
	g.over = ctx.Done()
	var running sync.WaitGroup
	var first []bus.Entry
	loaded := false
	take := func(entry bus.Entry) {
		if loaded {
			g.apply(entry)
		} else {
			first = append(first, entry)
		}
	}
	begin := func() {
		if loaded {
			return
		}
		loaded = true
		g.load(first)
		first = nil
		c.gate.Store(g)
		poke(c.unfinish) // expulsions may wait for it
		running.Go(func() { c.tellRecords(ctx, g, epoch) })
		running.Go(func() { stop(c.keep(ctx, g)) })
		running.Go(func() {
			if every(ctx, time.Duration(math.MaxInt64), g.restored) {
				stop(errRestored)
			}
		})
	}
	for ctx.Err() == nil {
		if err := g.watch(ctx, take, begin); err != nil && !loaded {
			stop(err)
		}
		every(ctx, watchPause, nil)
	}
	running.Wait()
	return context.Cause(ctx)
}

// watch follows the store until it ends, or there is a doubt whether it still hears of all changes: a watch
// finds out late that the server is gone that it had. What comes again then is passed over.
func (g *gatekeeper) watch(ctx context.Context, take func(bus.Entry), current func()) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if every(ctx, time.Duration(math.MaxInt64), g.doubt) {
			stop()
		}
	}()
	return g.bucket.Watch(ctx, take, current)
}

// load takes all that is in the store.
func (g *gatekeeper) load(all []bus.Entry) {
	slices.SortFunc(all, func(a, b bus.Entry) int { return cmp.Compare(a.Revision, b.Revision) })
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range all {
		if err := g.enter(e); err != nil {
			g.log.Error("coordinator: the store holds what cannot be told", "key", e.Key, "revision", e.Revision, "err", err)
		}
		g.applied = max(g.applied, e.Revision)
	}
	g.follow()
}

// tellRecords tells all members what is new in the directory, and now and then how far it is.
func (c *Coordinator) tellRecords(ctx context.Context, g *gatekeeper, epoch uint64) {
	told := g.journal.Head().Head
	next := time.Now()
	for ctx.Err() == nil {
		b := g.journal.Answer(directory.Ask{Epoch: epoch, After: told})
		switch {
		case b.Listing != 0:
			told = b.Head // so many are gone that members have to ask
			continue
		case b.Revision == told && time.Now().Before(next):
			every(ctx, time.Until(next), g.news)
			every(ctx, tellEvery, nil) // others may follow
			continue
		}
		data, err := b.Encode()
		if err == nil {
			err = c.tellAll(enrol.TopicDirectory, data)
		}
		if err != nil {
			c.config.Log.Debug("coordinator: what is new cannot be told yet", "err", err)
			every(ctx, retryEvery, nil)
			continue
		}
		told, next = b.Revision, time.Now().Add(headEvery)
		c.breathe(ctx)
	}
}

// breathe waits as long as the server takes to give a message to all members, once more: half of its time is
// for other things, such as the store, and what changes meanwhile goes into one message. Without this, many
// who join among very many make more messages than can be sent, all of them in the server's memory.
func (c *Coordinator) breathe(ctx context.Context) {
	e := c.engine.Load()
	if e == nil {
		return
	}
	start := time.Now()
	brief, cancel := context.WithTimeout(ctx, tellWithin)
	err := e.link.Flush(brief)
	cancel()
	if err != nil {
		c.config.Log.Debug("coordinator: the bus's server is slow", "err", err)
	}
	every(ctx, time.Since(start), nil)
}

// keep does what is due for a store from time to time. It returns why the store is good no more.
func (c *Coordinator) keep(ctx context.Context, g *gatekeeper) error {
	saved := time.Now()
	pause := soonestSave
	for every(ctx, tickEvery, nil) {
		for _, name := range g.tick() {
			if err := g.remove(ctx, name, "its record ended long ago"); err != nil {
				c.config.Log.Debug("coordinator: an ended record stays for now", "member", name, "err", err)
			}
		}
		if time.Since(saved) >= pause {
			pause = min(max(c.saveCopy(g), soonestSave), latestSave)
			saved = time.Now()
		}
		if err := g.compare(ctx, g.bucket.Last); err != nil {
			return err
		}
	}
	c.saveCopy(g)
	return ctx.Err()
}

// compare says whether the store has fewer changes than it had. What came after it was asked is no matter:
// while many members join, that is never nothing.
func (g *gatekeeper) compare(ctx context.Context, last func(context.Context) (uint64, error)) error {
	g.mu.Lock()
	applied := g.applied
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	if at, err := last(ctx); err == nil && at < applied {
		return fmt.Errorf("%w: it is at %d, and was at %d", errLostChanges, at, applied)
	}
	return nil
}

// saveCopy writes our copy of the directory, and returns how long the disk should then be left alone.
func (c *Coordinator) saveCopy(g *gatekeeper) time.Duration {
	g.mu.Lock()
	if !g.dirty {
		g.mu.Unlock()
		return 0
	}
	g.dirty = false
	data, err := g.directory.Encode()
	g.mu.Unlock()
	if err == nil {
		err = directory.Save(copyFile(c.config.Dir), data)
	}
	if err != nil {
		c.config.Log.Warn("coordinator: its copy of the directory cannot be kept", "err", err)
	}
	return time.Duration(len(data)) * time.Second / saveRate
}
