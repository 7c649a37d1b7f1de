package path_test

import (
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/path"
)

// inband models what happens to in-band SYNs in a world, and what the Manager can know of it. Its law: after a failed
// try, no join over the in-band detour follows for ten minutes, or for fifteen seconds if the try was not answered.
// An event that may mean another path lifts this.
type inband struct {
	path    string // what happens to SYNs: through, stripped, dropped
	addrs   []netip.Addr
	network int       // counts other addresses
	proven  bool      // a join came up, and the Manager was told
	bar     bar       // after a failed try
	perhaps bar       // was lifted for another server only, so the Manager may still obey it
	cleared time.Time // when an event last showed that the path was not the cause
}

// bar forbids joins for a time.
type bar struct {
	until   time.Time
	refused bool // a join was refused, not unanswered
}

const (
	barRefused    = 10 * time.Minute
	barUnanswered = 15 * time.Second
)

func (b *inband) forget() { b.proven, b.bar, b.perhaps = false, bar{}, bar{} }

func (b *inband) comesUp() { b.proven, b.bar, b.perhaps = true, bar{}, bar{} }

func (b *inband) clear(w *world) {
	if b.bar.until.After(w.now) {
		b.perhaps = b.bar
	}
	b.bar, b.cleared = bar{}, w.now
}

func (w *world) pathChanges(t *rapid.T) { w.inband.path = somePath(t) }

func somePath(t *rapid.T) string {
	return rapid.SampledFrom([]string{"through", "stripped", "dropped"}).Draw(t, "path")
}

func (s *wsub) inband() bool { return s.detour != nil && s.detour.Kind == path.InBand }
func (s *wsub) mapped() bool { return s.detour != nil && s.detour.Kind == path.Mapped }

func (b *inband) lawful(w *world, c *wconn, s *wsub) {
	if left := b.bar.until.Sub(w.now); s.inband() && left > 0 {
		w.t.Fatalf("connection %d: an in-band join, %v too early after one failed", c.token, left)
	}
}

// told records what the Manager learns from an event.
func (b *inband) told(w *world, ev path.Event) {
	switch ev := ev.(type) {
	case path.SubflowEstablished:
		if _, s := w.subflow(ev.Token, ev.Local, ev.Remote); s != nil && s.inband() {
			b.comesUp()
		}
	case path.Resync: // may have found a subflow up
		for _, c := range w.conns {
			if slices.ContainsFunc(c.subflows, func(s *wsub) bool { return s.up && s.inband() }) {
				b.comesUp()
			}
		}
	case path.WaypointLost, path.ServerRefused:
		b.clear(w)
	case path.LocalAddrs:
		addrs := slices.DeleteFunc(slices.Clone(ev.Addrs), tunnel)
		if !slices.Equal(addrs, b.addrs) {
			b.addrs = addrs
			b.network++
			b.forget()
		}
	}
}

// gaveUp records that the Manager ended a subflow. It may have failed without an event.
func (b *inband) gaveUp(w *world, c *wconn, s *wsub) {
	switch {
	case s == nil, s.mapped():
		b.clear(w) // the server may be the cause
	case !s.up:
		b.failed(w, c, s, w.now, barUnanswered)
	}
}

// ends records that the Manager will judge an end some time after it hears of it, unless the connection closes or
// events are lost before.
func (b *inband) ends(w *world, c *wconn, s *wsub) {
	if w.deaf || s.up || s.given || !s.ours {
		return
	}
	m, told := w.m, w.now.Add(kernelDelay)
	if s.mapped() {
		w.later(kernelDelay+250*time.Millisecond, func() { b.clear(w) })
		return
	}
	w.later(kernelDelay+300*time.Millisecond, func() {
		if w.conns[c.token] == c && w.m == m {
			b.failed(w, c, s, told, barRefused)
		}
	})
}

// failed records that a join did not come up, and the Manager knows.
func (b *inband) failed(w *world, c *wconn, s *wsub, since time.Time, long time.Duration) {
	known := s.inband() && s.network == b.network && w.here(s)
	elsewhere := w.lost["bob"] || w.forbids("bob", c.server) // the cause is elsewhere
	next := bar{since.Add(long), long == barRefused}
	if !known || elsewhere || b.proven || !b.cleared.Before(since) || b.bar.outweighs(next, w.now) {
		return
	}
	if b.perhaps.outweighs(next, w.now) && b.perhaps.until.Before(next.until) {
		next = b.perhaps
	}
	b.bar = next
}

// outweighs reports whether a bar stands that another failure does not change.
func (b bar) outweighs(next bar, now time.Time) bool {
	return b.until.After(now) && (b.refused || !next.refused)
}
