package session

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// maxAsking bounds a client's outstanding requests to what a waypoint allows by default.
const maxAsking = 512

// call is the client's end of one session: the outstanding requests, and two goroutines that read
// and write.
type call struct {
	*outgoing
	out   *outbox
	slots chan struct{}
	heard chan struct{}       // something arrived
	pongs chan netip.AddrPort // our address as seen by the waypoint, the newest only
	news  chan wire.Hello     // repeated greetings, the newest only
	ended chan struct{}       // closed when reading or writing has failed

	workers sync.WaitGroup
	once    sync.Once

	mu      sync.Mutex
	lastID  uint64
	pending map[uint64]chan answer
	failure error // why ended was closed
	down    error // answer to all further requests
}

type answer struct {
	grant  wire.Message
	client netip.Addr // address that the grant is for
	err    error
}

func newCall(o *outgoing) *call {
	c := &call{
		outgoing: o,
		out:      newOutbox(),
		slots:    make(chan struct{}, maxAsking),
		heard:    make(chan struct{}, 1),
		pongs:    make(chan netip.AddrPort, 1),
		news:     make(chan wire.Hello, 1),
		ended:    make(chan struct{}),
		pending:  map[uint64]chan answer{},
	}
	_ = c.out.put(o.attestation) // fits, and has a valid form
	c.workers.Go(func() {
		if err := c.out.run(c.stream); err != nil {
			c.fail(err)
		}
	})
	c.workers.Go(func() { c.fail(c.read()) })
	return c
}

// ask sends the request that say returns and waits for its answer.
func (c *call) ask(ctx context.Context, say func(id uint64) wire.Message) answer {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
	defer func() { <-c.slots }()

	reply := make(chan answer, 1)
	c.mu.Lock()
	if c.down != nil {
		c.mu.Unlock()
		return answer{err: c.down}
	}
	c.lastID++
	id := c.lastID
	c.pending[id] = reply
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
	}()
	// If the outbox is closed, end answers.
	if err := c.out.put(say(id)); err != nil && !errors.Is(err, errClosed) {
		return answer{err: err}
	}
	select {
	case a := <-reply:
		return a
	case <-ctx.Done():
		return answer{err: ctx.Err()}
	}
}

func (c *call) ping() { _ = c.out.put(wire.Ping{}) } // if the session has ended, read returns the reason

// read distributes arriving messages until the stream ends.
func (c *call) read() error {
	for {
		m, err := c.decoder.Next()
		var malformed *wire.MalformedError
		if err != nil && !errors.As(err, &malformed) {
			return err
		}
		offer(c.heard, struct{}{})
		switch m := m.(type) {
		case wire.MapGrant:
			c.reply(m.ID, answer{grant: m, client: m.Client})
		case wire.TunnelGrant:
			c.reply(m.ID, answer{grant: m, client: m.Client})
		case wire.Refusal:
			c.reply(m.ID, answer{err: &m})
		case wire.Hello:
			offer(c.news, m)
		case wire.Pong:
			offer(c.pongs, m.Observed)
		case nil: // from a newer version; it may answer one of our requests
			c.reply(malformed.ID, answer{err: malformed})
		}
	}
}

// offer replaces the value in a channel of capacity one. Only the reading goroutine may call it.
func offer[T any](ch chan T, v T) {
	select {
	case <-ch:
	default:
	}
	ch <- v
}

// reply answers a request if it is still outstanding.
func (c *call) reply(id uint64, a answer) {
	c.mu.Lock()
	ch := c.pending[id]
	delete(c.pending, id)
	c.mu.Unlock()
	if ch != nil {
		ch <- a
	}
}

func (c *call) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure == nil {
		c.failure = err
		close(c.ended)
	}
}

// why returns the reason of the session's end. The connection's reason takes precedence over a
// stream's.
func (c *call) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cause := context.Cause(c.conn.Context()); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return c.failure
}

// end closes the session, answers all outstanding requests, and returns when both goroutines have
// ended.
func (c *call) end(code quic.ApplicationErrorCode, text string, down error) {
	c.once.Do(func() {
		c.out.close()
		closeLine(c.conn, code, text)
		c.workers.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.down = down
		for id, ch := range c.pending {
			ch <- answer{err: down}
			delete(c.pending, id)
		}
	})
}
