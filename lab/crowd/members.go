package crowd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/lab/remote"
	"github.com/detour-collective/dcol/lab/stats"
)

// Members is the process of all members but the coordinator.
type Members struct {
	Dir    string // where their files go: a tmpfs, as a real member has a disk for itself
	Most   int    // how many there will be
	Sample int    // how many of them hold a copy of the directory and take revocation lists
	// Parallel is the number of concurrent operations. The coordinator accepts 64 connections from one
	// address.
	Parallel int

	ctx        context.Context
	broadcasts *broadcasts
	all        []*member
	shared     *collective.Files // roots and lists as they were when the first joined
}

// HeardWithin limits the wait for an expected message.
const HeardWithin = 20 * time.Second

// Run lets others call the methods below, over in and out, until in ends.
func (c *Members) Run(ctx context.Context, in io.Reader, out io.Writer, _ *slog.Logger) error {
	if _, err := raiseFiles(); err != nil {
		return err
	}
	c.ctx, c.broadcasts = ctx, newBroadcasts(c.Most)
	defer func() {
		for _, m := range c.all {
			m.leave()
			if m.keeper != nil {
				m.keeper.Close()
			}
		}
	}()
	return remote.Serve(c, in, out)
}

// Capacity replies how many members may be connected, by the limit of open files.
func (c *Members) Capacity(_ struct{}, members *int) (err error) {
	*members, err = raiseFiles()
	return err
}

// Connect brings all members onto the bus that are not.
func (c *Members) Connect(_ struct{}, out *Work) error {
	var away []*member
	for _, m := range c.all {
		if m.onBus() == nil {
			away = append(away, m)
		}
	}
	*out = c.each(len(away), func(i int) error { return away[i].connect(c.ctx) })
	return nil
}

// Renew has a number of members renew their certificates.
func (c *Members) Renew(count int, out *Work) error {
	on := c.connected()
	*out = c.each(min(count, len(on)), func(i int) error { return c.all[on[i]].renew(c.ctx) })
	return nil
}

// Settle gives back memory that is free.
func (c *Members) Settle(_ struct{}, out *Memory) error {
	*out = settle()
	return nil
}

// each does something once with every number, several at a time.
func (c *Members) each(count int, do func(i int) error) Work {
	w := Work{Millis: make([]float64, count)}
	var next, failed atomic.Int64
	var why atomic.Pointer[error]
	var workers sync.WaitGroup
	start := time.Now()
	for range c.Parallel {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				began := time.Now()
				if err := do(i); err != nil {
					failed.Add(1)
					why.Store(&err)
				}
				w.Millis[i] = stats.Milliseconds(time.Since(began))
			}
		})
	}
	workers.Wait()
	w.Seconds, w.Failed = time.Since(start).Seconds(), int(failed.Load())
	if e := why.Load(); e != nil {
		w.Why = (*e).Error()
	}
	return w
}

// Join has new members enrol, connect and publish their records.
func (c *Members) Join(args Joining, out *Work) error {
	count := len(args.Lines)
	if len(c.all)+count > c.Most {
		return fmt.Errorf("%d more members are more than %d", count, c.Most)
	}
	parsed := make([]enrol.Line, count)
	for i, text := range args.Lines {
		var err error
		if parsed[i], err = enrol.ParseLine(text); err != nil {
			return err
		}
	}
	first := len(c.all)
	for i := range count {
		c.all = append(c.all, &member{number: first + i, broadcasts: c.broadcasts})
	}
	one := func(i int) error { return c.joinOne(c.ctx, c.all[first+i], parsed[i], args.Stay) }
	if first > 0 {
		*out = c.each(count, one)
		return nil
	}
	// The first answer, from a member of the sample, has what all of them share.
	if count == 0 || c.Sample == 0 {
		return errors.New("somebody must hold a copy of the directory")
	}
	if err := one(0); err != nil {
		return err
	}
	copied := filesIn(filepath.Join(c.Dir, "shared"))
	if err := copyTrust(c.all[0].id.Trust(), copied); err != nil {
		return err
	}
	c.shared = &copied
	*out = c.each(count-1, func(i int) error { return one(i + 1) })
	return nil
}

func (c *Members) joinOne(ctx context.Context, m *member, l enrol.Line, stay bool) error {
	shared := c.shared
	if m.number < c.Sample {
		shared = nil
	}
	if err := m.join(ctx, c.Dir, l, shared); err != nil {
		return err
	}
	if m.number < c.Sample {
		m.keep()
	}
	if err := m.connect(ctx); err != nil {
		return err
	}
	_, err := m.publish(ctx)
	if !stay {
		m.leave()
	}
	return err
}

// connected returns the numbers of those on the bus.
func (c *Members) connected() (numbers []int) {
	for i, m := range c.all {
		if m.connected() {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// Publish has a number of members change their records, one by one. Each waits until all have received the
// change before.
func (c *Members) Publish(count int, out *[]Spread) error {
	on := c.connected()
	for i := range min(count, len(on)) {
		began := time.Now()
		s, err := c.all[on[len(on)-1-i]].publish(c.ctx)
		if err != nil {
			return err
		}
		*out = append(*out, c.awaitBroadcast(on, began, func(m *message) bool { return m.has(s) }))
	}
	return nil
}

// awaitBroadcast waits until these members have received a message, and returns how long after since they did.
func (c *Members) awaitBroadcast(by []int, since time.Time, is func(*message) bool) Spread {
	var found *message
	_ = eventually(c.ctx, HeardWithin, func() bool { // who did not receive it is counted
		found = c.broadcasts.find(is)
		return found != nil && found.heard(by)
	})
	defer c.broadcasts.forget()
	return c.broadcasts.spread(found, by, since)
}

// Heard waits until all members have received an expulsion.
func (c *Members) Heard(of Expelled, r *Reached) error {
	var out *member
	for _, m := range c.all {
		if m.name() == of.Name {
			out = m
		}
	}
	if out == nil {
		return fmt.Errorf("there is no %s", of.Name)
	}
	if err := eventually(c.ctx, HeardWithin, func() bool { return !out.connected() }); err != nil {
		return fmt.Errorf("%s is expelled and on the bus: %w", of.Name, err)
	}
	r.Cut = stats.Milliseconds(out.onBus().State().Since.Sub(of.Began))
	r.Spread = c.awaitBroadcast(c.connected(), of.Began, func(m *message) bool {
		return m.trust != nil && m.trust.Whole() && m.trust.Hash == of.Hash
	})
	for _, m := range c.all[:min(c.Sample, len(c.all))] {
		var at any
		err := eventually(c.ctx, HeardWithin, func() (ok bool) {
			at, ok = m.taken.Load(of.Hash)
			return ok
		})
		if err != nil {
			return fmt.Errorf("%s has not taken the revocation list: %w", m.name(), err)
		}
		if m.id.Trust().Check(out.id.Self(), time.Now()) == nil {
			return fmt.Errorf("%s takes %s for a member still", m.name(), of.Name)
		}
		r.Verified = max(r.Verified, stats.Milliseconds(at.(time.Time).Sub(of.Began)))
	}
	err := out.renew(c.ctx)
	out.leave()
	if !errors.Is(err, enrol.Expelled) {
		return fmt.Errorf("%s asked for a new certificate, and was not refused as expelled: %w", of.Name, err)
	}
	r.Refusal = err.Error()
	return nil
}

// State describes the members, where the directory's head is at that revision.
func (c *Members) State(head uint64, s *MembersState) error {
	for _, m := range c.all {
		s.Connects += m.connects.Load()
		s.Retries += m.retries.Load()
		s.Gaps += m.gaps.Load()
		s.Changes += m.changes.Load()
		line := m.onBus()
		if line == nil {
			continue
		}
		state := line.State()
		s.Dropped += state.Dropped
		if state.Connected {
			s.Connected++
			if m.revision.Load() != head {
				s.Behind++
			}
		}
		if m.keeper != nil {
			s.Copies = append(s.Copies, m.copied())
		}
	}
	return nil
}

func (m *member) copied() Copy {
	s := m.keeper.State()
	c := Copy{Members: s.Members, Revision: s.Revision, Behind: s.Behind}
	for _, n := range s.Refused {
		c.Refused += int(n)
	}
	return c
}
