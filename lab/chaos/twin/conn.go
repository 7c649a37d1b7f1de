package twin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/plan"
)

// Conn is one connection, both its ends.
type Conn struct {
	id     uint64
	stream plan.Stream
	mptcp  bool

	began    time.Time
	stopping chan struct{} // closed: the sender is to finish
	stopOnce sync.Once
	ended    chan struct{} // closed: the record is complete
	cancel   context.CancelFunc

	received atomic.Int64 // bytes that arrived, of both directions
	accepted chan duplex  // the server's end, once it is there

	mu    sync.Mutex // guards what follows
	local netip.AddrPort
	seen  netip.AddrPort // the client's address as the server sees it
	sent  [2]int64
	got   [2]int64
	stall time.Duration
	over  [2]bool // this direction's bytes have all arrived
	ends  []duplex
	plain bool  // an end's socket became plain TCP
	err   error // the first that came
	endAt time.Time
}

// Directions of bytes, as indexes.
const (
	toServer = iota
	toClient
)

// ends names the end that sends in a direction.
var ends = [...]string{toServer: "client", toClient: "server"}

func newConn(id uint64, s plan.Stream, mptcp bool) *Conn {
	return &Conn{
		id: id, stream: s, mptcp: mptcp, began: time.Now(),
		stopping: make(chan struct{}), ended: make(chan struct{}), accepted: make(chan duplex, 1),
	}
}

// Record describes a connection and how it ended.
type Record struct {
	Stream plan.Stream
	MPTCP  bool
	Local  netip.AddrPort
	Began  time.Time
	Ended  time.Time // zero while it lives
	// Whole reports that every byte that was sent arrived, and so did the end.
	Whole bool
	Err   error  `json:"-"` // why not
	Why   string // the same, for people
	// Received counts the bytes that arrived.
	Received int64
	// Fallback reports that an end's MPTCP socket had become plain TCP.
	Fallback bool
	// Stall is the longest time in which no bytes arrived although some should have.
	Stall time.Duration
}

// Record describes the connection so far.
func (c *Conn) Record() Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := Record{
		Stream: c.stream, MPTCP: c.mptcp, Local: c.local, Began: c.began, Ended: c.endAt,
		Whole: c.whole(), Err: c.err, Received: c.received.Load(), Stall: c.stall,
		Fallback: c.plain,
	}
	if c.err != nil {
		r.Why = c.err.Error()
	}
	return r
}

func (c *Conn) whole() bool { return c.err == nil && c.over[toServer] && c.over[toClient] }

// Received returns the number of bytes that have arrived.
func (c *Conn) Received() int64 { return c.received.Load() }

// Local returns the client's address, invalid before it is connected.
func (c *Conn) Local() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local
}

// Seen returns the client's address as the server sees it, invalid before that.
func (c *Conn) Seen() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// Alive reports whether the connection is established and not to be ended.
func (c *Conn) Alive() bool {
	select {
	case <-c.stopping:
		return false
	case <-c.ended:
		return false
	default:
		return c.Local().IsValid()
	}
}

// Stop ends the senders in order.
func (c *Conn) Stop() { c.stopOnce.Do(func() { close(c.stopping) }) }

// Ended returns a channel that is closed when the connection has ended.
func (c *Conn) Ended() <-chan struct{} { return c.ended }

// Abort ends the connection at once.
func (c *Conn) Abort() {
	c.noteFallback()
	c.fail(ErrAborted)
}

// ErrAborted is the end of connections that Abort ended.
var ErrAborted = errors.New("had not come to its end when time was up")

// run carries the connection from its beginning to its end. connect opens the client's end.
func (c *Conn) run(ctx context.Context, connect func(context.Context) (*socket, error)) {
	ctx, c.cancel = context.WithCancel(ctx)
	go func() {
		defer close(c.ended)
		defer c.cancel()
		if err := c.live(ctx, connect); err != nil {
			c.fail(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.endAt = time.Now()
	}()
}

func (c *Conn) live(ctx context.Context, connect func(context.Context) (*socket, error)) error {
	client, err := connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	local, err := client.local()
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.local, c.ends = local, append(c.ends, client)
	c.mu.Unlock()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	if _, err := client.Write(header(c.id)); err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- c.atServer(ctx) }()
	go func() { c.end(ctx, client, toServer); failed <- nil }()
	return errors.Join(<-failed, <-failed)
}

// fail keeps the first error, unless the connection has ended, and ends both ends.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil && c.endAt.IsZero() {
		c.err = err
	}
	c.mu.Unlock()
	c.cancel()
}

func (c *Conn) atServer(ctx context.Context) error {
	select {
	case server := <-c.accepted:
		defer server.Close()
		c.mu.Lock()
		c.ends = append(c.ends, server)
		c.mu.Unlock()
		defer context.AfterFunc(ctx, func() { server.Close() })()
		c.end(ctx, server, toClient)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end runs one end: it sends in a direction, and receives the other direction's bytes.
func (c *Conn) end(ctx context.Context, conn duplex, direction int) {
	sent := make(chan error, 1)
	answers := make(chan int, maxUnanswered)
	go func() { sent <- c.send(ctx, conn, direction, answers) }()
	err := c.receive(conn, 1-direction, answers)
	close(answers)
	c.noteFallback()
	if err != nil {
		c.fail(fmt.Errorf("%s: receive: %w", ends[direction], err))
	}
	if err := <-sent; err != nil {
		c.fail(fmt.Errorf("%s: send: %w", ends[direction], err))
	}
}

// noteFallback asks the kernel about the ends that are still open.
func (c *Conn) noteFallback() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plain = c.plain || slices.ContainsFunc(c.ends, fellBack)
}

// receive checks the bytes of a direction until its end.
func (c *Conn) receive(conn io.Reader, direction int, answers chan<- int) error {
	check := newChecker(c.id, uint64(direction))
	buffer := make([]byte, 32<<10)
	last := time.Now()
	for {
		n, err := conn.Read(buffer)
		if n > 0 {
			c.received.Add(int64(n))
			if wrong := check.check(buffer[:n]); wrong != nil {
				return wrong
			}
			c.note(direction, int64(n), time.Since(last))
			last = time.Now()
			if c.stream.Kind == plan.Messages && direction == toServer {
				answers <- n
			}
		}
		if errors.Is(err, io.EOF) {
			return c.finish(direction)
		}
		if err != nil {
			return err
		}
	}
}

// note counts bytes that arrived after a pause.
func (c *Conn) note(direction int, n int64, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got[direction] += n
	c.stall = max(c.stall, pause)
}

// ErrTruncated is the end of a connection that delivered less than was sent, without another error.
var ErrTruncated = errors.New("ended before everything that was sent had arrived")

// finish handles the end of a direction. Everything that was sent must have arrived.
func (c *Conn) finish(direction int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.got[direction] != c.sent[direction] {
		return fmt.Errorf("%w: %d of %d bytes", ErrTruncated, c.got[direction], c.sent[direction])
	}
	c.over[direction] = true
	return nil
}
