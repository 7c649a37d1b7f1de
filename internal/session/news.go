package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// Closed is the reason why a waypoint gives nothing to any member for now. Its sessions continue.
type Closed struct {
	Code  wire.Code // a code for which Code.Closed is true, or an unknown newer one
	Until time.Time // zero: the waypoint does not know
}

func (c Closed) String() string {
	text := c.Code.Text()
	if text == "" {
		text = "the waypoint is closed for now"
	}
	if !c.Until.IsZero() {
		return fmt.Sprintf("%v until %s: %s", c.Code, c.Until.Local().Format("2 Jan 15:04"), text)
	}
	return fmt.Sprintf("%v: %s", c.Code, text)
}

func (c *Closed) equal(o *Closed) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Code == o.Code && c.Until.Equal(o.Until)
}

// closedOf returns the Closed in a greeting that has just arrived. The time that the greeting took
// is ignored.
func closedOf(h wire.Hello, now time.Time) *Closed {
	switch {
	case h.Closed == 0:
		return nil
	case h.ClosedFor == 0:
		return &Closed{Code: h.Closed}
	}
	return &Closed{Code: h.Closed, Until: now.Add(h.ClosedFor).Round(time.Second)}
}

// longestLoaded bounds the time for which one greeting makes a client prefer other waypoints.
const longestLoaded = time.Minute

// Load is a waypoint's load, as reported by the waypoint. The zero value means that it is not loaded, and that no
// single member uses all of its capacity.
type Load struct {
	// Until is the time until which clients should prefer other waypoints.
	Until time.Time
	// Gives is the rate that one more member would get, in bits a second, if the waypoint is loaded or one member uses
	// all of its capacity. Zero means that the waypoint does not know it, or has more than one member could use.
	Gives float64
}

// loadOf returns the load in a greeting that has just arrived. Its end is a time of now's monotonic clock.
func loadOf(h wire.Hello, now time.Time) Load {
	load := Load{Gives: float64(h.LoadedGives)}
	if h.LoadedFor > 0 {
		load.Until = now.Add(min(h.LoadedFor, longestLoaded))
	}
	return load
}

// equal reports whether two loads are the same. It ignores small differences of Until, because greetings take different times.
func (l Load) equal(o Load) bool {
	return l.Gives == o.Gives && l.Until.Sub(o.Until).Abs() < time.Second
}

// news wakes all waiting goroutines whenever it is told of a change.
type news struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next change
}

func (n *news) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.next
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.next)
	n.next = make(chan struct{})
}

// Tell makes the server greet all members again, because Offers, Closed or Load of the Handler have changed. It does
// not block.
func (s *Server) Tell() { s.news.tell() }

// tellNews greets a member again after each change. While the member is slow to read, several changes are sent in one
// greeting.
func (s *service) tellNews(ctx context.Context, l *line, out *outbox, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		changed = s.news.wait()
		if out.put(s.hello(l)) != nil {
			return // the session ends, and reading or writing returns the reason
		}
	}
}

// hello returns the waypoint's greeting.
func (s *service) hello(l *line) wire.Hello {
	h := wire.Hello{Version: wire.Version, Offers: s.handler.Offers(), Lease: s.config.Lease, Observed: addrPort(l.conn.RemoteAddr()), Session: l.session}
	if only := s.config.MappedOnly; only != nil && only(l.member.Name) {
		h.Offers = slices.DeleteFunc(slices.Clone(h.Offers), func(k wire.Kind) bool { return k != wire.Mapped })
	}
	if c := s.handler.Closed(); c != nil {
		h.Closed = c.Code
		if !c.Until.IsZero() {
			h.ClosedFor = wire.Span(time.Until(c.Until))
		}
	}
	load := s.handler.Load()
	h.LoadedGives = uint64(max(load.Gives, 0))
	if left := time.Until(load.Until); left > 0 {
		h.LoadedFor = wire.Span(wire.Spread(left, load.Until, l.member.Name))
	}
	return h
}
