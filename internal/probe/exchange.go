package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"syscall"
	"time"
)

// Way selects how a connection is made.
type Way string

// The ways.
const (
	TCP     Way = "tcp"
	MPTCP   Way = "mptcp"   // without detours
	Detours Way = "detours" // MPTCP, with the detours of the agent on this host
)

// Ways returns all ways.
func Ways() []Way { return []Way{TCP, MPTCP, Detours} }

// Timeouts of a client.
const (
	connectLimit = 10 * time.Second
	// patience bounds the wait for data that is due.
	patience = 30 * time.Second
)

// Client makes exchanges with a server.
type Client struct {
	Server string // host:port
	Shape  Shape
	// Path returns the name of a subflow's path by the subflow's addresses, or "" if it is not known.
	Path func(Subflow) string
	// Before is called with the local address before an MPTCP connection is opened. It may be nil.
	Before func(ctx context.Context, way Way, local net.Addr) error
	// Source is the local address of connections. If it is nil, the kernel chooses.
	Source net.IP
}

// Exchange makes one exchange. If it fails, the Record's Error has the reason.
func (c *Client) Exchange(ctx context.Context, way Way) Record {
	r := Record{Schema: Schema, Time: time.Now().UTC().Truncate(time.Millisecond), Server: c.Server, Shape: c.Shape, Way: way}
	if err := c.exchange(ctx, way, &r); err != nil {
		r.Error = c.reason(err)
	}
	return r
}

func (c *Client) exchange(ctx context.Context, way Way, r *Record) error {
	began := time.Now()
	conn, err := c.dial(ctx, way)
	if err != nil {
		return err
	}
	defer conn.Close()
	r.Connect = milliseconds(time.Since(began))
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if err := conn.SetDeadline(time.Now().Add(c.Shape.length() + patience)); err != nil {
		return err
	}
	seed := rand.Uint64()
	if err := writeHello(conn, slices.Index(Shapes(), c.Shape), seed); err != nil {
		return err
	}
	if shape, again, err := readHello(conn); err != nil || shape != c.Shape || again != seed {
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && isNet(err) {
			return err
		}
		return errNoServer
	}
	paths := newPaths(conn, way, c.Path)
	start := time.Now()
	for _, turn := range c.Shape.script(seed) {
		if err := pause(ctx, time.Until(start.Add(turn.after))); err != nil {
			return err
		}
		if err := c.turn(conn, turn, paths, r); err != nil {
			return err
		}
	}
	r.Duration = milliseconds(time.Since(start))
	if c.Shape == Page {
		r.Values = []float64{r.Duration}
	}
	r.Bytes, r.FellBack = paths.total()
	return nil
}

// turn sends a request and reads its reply.
func (c *Client) turn(conn net.Conn, turn round, paths *paths, r *Record) error {
	if turn.reply > 0 {
		paths.begin() // before the request, because on a fast path the reply arrives at once
	}
	for _, n := range turn.request {
		if _, err := conn.Write(make([]byte, n)); err != nil {
			return err
		}
	}
	sent := time.Now()
	if turn.reply == 0 {
		return nil
	}
	var first time.Duration
	var arrivals []time.Duration
	buffer := make([]byte, 64<<10)
	for got := 0; got < turn.reply; {
		n, err := conn.Read(buffer[:min(len(buffer), turn.reply-got)])
		now := time.Since(sent)
		if n > 0 && got == 0 {
			first = now
		}
		for turn.message > 0 && len(arrivals) < (got+n)/turn.message {
			arrivals = append(arrivals, now)
		}
		got += n
		if err != nil && got < turn.reply {
			return fmt.Errorf("%d of %d bytes of a reply arrived: %w", got, turn.reply, err)
		}
	}
	took := time.Since(sent)
	if !turn.measured {
		return nil
	}
	r.Replies = append(r.Replies, paths.end())
	switch c.Shape {
	case Voice, VoiceQuiet:
		r.Values = append(r.Values, milliseconds(first))
	case Requests:
		r.Values = append(r.Values, milliseconds(took))
	case Stream:
		r.Values = lateness(arrivals, turn.interval)
	case Bulk:
		r.Values = append(r.Values, float64(turn.reply)*8/took.Seconds()/1e6)
	}
	return nil
}

// lateness returns the delay of each message in milliseconds, compared with the least late message. The messages were
// sent at the given interval. No comparison of the two hosts' clocks is needed.
func lateness(arrivals []time.Duration, interval time.Duration) []float64 {
	late := make([]time.Duration, len(arrivals))
	for i, a := range arrivals {
		late[i] = a - time.Duration(i)*interval
	}
	values := make([]float64, len(late))
	for i := range late {
		values[i] = milliseconds(late[i] - slices.Min(late))
	}
	return values
}

// dial connects to the server.
func (c *Client) dial(ctx context.Context, way Way) (net.Conn, error) {
	d := net.Dialer{Timeout: connectLimit, KeepAlive: -1}
	d.SetMultipathTCP(way != TCP)
	if c.Source != nil {
		d.LocalAddr = &net.TCPAddr{IP: c.Source}
	}
	if c.Before != nil && way != TCP {
		d.ControlContext = func(ctx context.Context, _, address string, raw syscall.RawConn) error {
			local, err := bindPort(address, c.Source, raw)
			if err != nil {
				return err
			}
			return c.Before(ctx, way, local)
		}
	}
	return d.DialContext(ctx, "tcp", c.Server)
}

// reason describes an error in words that name the server.
func (c *Client) reason(err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return "it was interrupted"
	case errors.Is(err, errNoServer):
		return fmt.Sprintf("what answers at %s is no dcol probe server of this version", c.Server)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("%s refuses connections: is `dcol probe serve` running there?", c.Server)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Sprintf("%s ended the connection too early: %v", c.Server, err)
	case isTimeout(err):
		return fmt.Sprintf("%s does not answer any more: %v", c.Server, err)
	default:
		return err.Error()
	}
}

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}

func isNet(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
