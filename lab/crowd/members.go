package crowd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

// Members is the process of all members but the coordinator.
type Members struct {
	Dir    string // where their files go: a tmpfs, as a real member has a disk for itself
	Most   int    // how many there will be
	Sample int    // how many of them hold a copy of the directory and take revocation lists
	// Parallel is the number of concurrent operations. The coordinator accepts 64 connections from one
	// address.
	Parallel int

	hearing *hearing
	all     []*member
	shared  *collective.Files // roots and lists as they were when the first joined
}

// HeardWithin limits the wait for an expected message.
const HeardWithin = 20 * time.Second

// Run obeys orders until there are no more.
func (c *Members) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	most, err := raiseFiles()
	if err != nil {
		return err
	}
	c.hearing = newHearing(c.Most)
	defer func() {
		for _, m := range c.all {
			m.leave()
			if m.keeper != nil {
				m.keeper.Close()
			}
		}
	}()
	return obey(ctx, in, out, Ready{Members: most}, c.do)
}

func (c *Members) do(ctx context.Context, o Order) (any, error) {
	switch o.Do {
	case Join:
		return c.join(ctx, o.Lines, o.Stay)
	case Connect:
		var away []*member
		for _, m := range c.all {
			if m.onBus() == nil {
				away = append(away, m)
			}
		}
		return c.each(len(away), func(i int) error { return away[i].connect(ctx) }), nil
	case Publish:
		return c.publish(ctx, o.Count)
	case Heard:
		return c.heard(ctx, o)
	case Renew:
		on := c.connected()
		return c.each(min(o.Count, len(on)), func(i int) error { return c.all[on[i]].renew(ctx) }), nil
	case Look:
		return c.state(o.Head), nil
	case Settle:
		return settle(), nil
	}
	return nil, fmt.Errorf("members cannot %q", o.Do)
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
				w.Millis[i] = millis(time.Since(began))
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

// join has new members enrol, connect and publish their records.
func (c *Members) join(ctx context.Context, lines []string, stay bool) (any, error) {
	if len(c.all)+len(lines) > c.Most {
		return nil, fmt.Errorf("%d more members are more than %d", len(lines), c.Most)
	}
	parsed := make([]enrol.Line, len(lines))
	for i, text := range lines {
		var err error
		if parsed[i], err = enrol.ParseLine(text); err != nil {
			return nil, err
		}
	}
	first := len(c.all)
	for i := range lines {
		c.all = append(c.all, &member{number: first + i, hearing: c.hearing})
	}
	one := func(i int) error { return c.joinOne(ctx, c.all[first+i], parsed[i], stay) }
	if first > 0 {
		return c.each(len(lines), one), nil
	}
	// The first answer, from a member of the sample, has what all of them share.
	if len(lines) == 0 || c.Sample == 0 {
		return nil, errors.New("somebody must hold a copy of the directory")
	}
	if err := one(0); err != nil {
		return nil, err
	}
	copied := filesIn(filepath.Join(c.Dir, "shared"))
	if err := copyTrust(c.all[0].id.Trust(), copied); err != nil {
		return nil, err
	}
	c.shared = &copied
	return c.each(len(lines)-1, func(i int) error { return one(i + 1) }), nil
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

// publish has members change their records, one by one. Each waits until all have received the change before.
func (c *Members) publish(ctx context.Context, count int) (out []Spread, err error) {
	on := c.connected()
	for i := range min(count, len(on)) {
		began := time.Now()
		s, err := c.all[on[len(on)-1-i]].publish(ctx)
		if err != nil {
			return out, err
		}
		var told *message
		_ = eventually(ctx, HeardWithin, func() bool { // who did not hear it is counted
			told = c.hearing.find(func(m *message) bool { return m.has(s) })
			return told != nil && told.heard(on)
		})
		out = append(out, c.hearing.spread(told, on, began))
		c.hearing.forget()
	}
	return out, nil
}

// heard waits until all members have received an expulsion.
func (c *Members) heard(ctx context.Context, o Order) (any, error) {
	var out *member
	for _, m := range c.all {
		if m.name() == o.Name {
			out = m
		}
	}
	if out == nil {
		return nil, fmt.Errorf("there is no %s", o.Name)
	}
	var r Reached
	if err := eventually(ctx, HeardWithin, func() bool { return !out.connected() }); err != nil {
		return nil, fmt.Errorf("%s is expelled and on the bus: %w", o.Name, err)
	}
	r.Cut = millis(out.onBus().State().Since.Sub(o.Began))
	on := c.connected()
	var told *message
	_ = eventually(ctx, HeardWithin, func() bool { // who did not hear it is counted
		told = c.hearing.find(func(m *message) bool { return m.trust != nil && m.trust.Whole() && m.trust.Hash == o.Hash })
		return told != nil && told.heard(on)
	})
	r.Spread = c.hearing.spread(told, on, o.Began)
	for _, m := range c.all[:min(c.Sample, len(c.all))] {
		var at any
		err := eventually(ctx, HeardWithin, func() (ok bool) {
			at, ok = m.taken.Load(o.Hash)
			return ok
		})
		if err != nil {
			return nil, fmt.Errorf("%s has not taken the revocation list: %w", m.name(), err)
		}
		if m.id.Trust().Check(out.id.Self(), time.Now()) == nil {
			return nil, fmt.Errorf("%s takes %s for a member still", m.name(), o.Name)
		}
		r.Verified = max(r.Verified, millis(at.(time.Time).Sub(o.Began)))
	}
	err := out.renew(ctx)
	out.leave()
	if !errors.Is(err, enrol.Expelled) {
		return nil, fmt.Errorf("%s asked for a new certificate, and was not refused as expelled: %w", o.Name, err)
	}
	r.Refusal = err.Error()
	c.hearing.forget()
	return r, nil
}

// state counts, by where the directory's head is.
func (c *Members) state(head uint64) MembersState {
	var s MembersState
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
	return s
}

func (m *member) copied() Copy {
	s := m.keeper.State()
	c := Copy{Members: s.Members, Revision: s.Revision, Behind: s.Behind}
	for _, n := range s.Refused {
		c.Refused += int(n)
	}
	return c
}
