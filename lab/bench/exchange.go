package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/lab/remote"
)

// Connections to an ExchangeServer begin with a request. Its first byte is one of these constants, which tells the server
// what to do. The next eight bytes are a number of bytes.
const (
	requestSize = 100

	discards = 'd' // reads until the client is done
	sends    = 's' // writes until the client is gone
	answers  = 'a' // writes the number of bytes, and closes
	echoes   = 'e' // writes every requestSize bytes back, also the request
)

func request(kind byte, size int) []byte {
	b := make([]byte, requestSize)
	b[0] = kind
	binary.BigEndian.PutUint64(b[1:], uint64(size))
	return b
}

// Received counts the bytes of transfers that one end has received.
type Received struct {
	Bytes int64
	At    time.Duration // by the clock of this end
}

// meter counts what one end receives.
type meter struct {
	began    time.Time
	received atomic.Int64
}

// Received reads the counter.
func (m *meter) Received(_ struct{}, now *Received) error {
	*now = Received{m.received.Load(), time.Since(m.began)}
	return nil
}

// take reads until the connection ends or fails.
func (m *meter) take(conn net.Conn) {
	b := make([]byte, 256<<10)
	for {
		n, err := conn.Read(b)
		m.received.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// ExchangeClient opens connections, through relays or directly, when its caller asks for them.
type ExchangeClient struct {
	meter
	ctx     context.Context
	current net.Conn // the transfer's
	moving  sync.WaitGroup
	held    []net.Conn
}

// ExchangeServerPart and ExchangeClientPart are the names of the programs of the two ends.
const (
	ExchangeServerPart = "exchange-server"
	ExchangeClientPart = "exchange-client"
)

// Run serves calls of the methods below over in and out, until in ends.
func (c *ExchangeClient) Run(ctx context.Context, in io.Reader, out io.Writer, _ *slog.Logger) error {
	c.ctx, c.began = ctx, time.Now()
	return remote.Serve(c, in, out)
}

// Target describes where and how a client connects.
type Target struct {
	To        netip.AddrPort
	Multipath bool // by MPTCP, which must not fall back to TCP
	Run       bool // by MPTCP because of `dcol run`: the client asks for TCP
	// Server is the server that a Convert message names. If it is not valid, To is not a converter.
	Server netip.AddrPort
	// Waits makes the client send nothing before the converter has answered.
	Waits bool
}

func (c *ExchangeClient) dial(t Target) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1, Timeout: exchangePatience}
	d.SetMultipathTCP(t.Multipath)
	conn, err := d.DialContext(c.ctx, "tcp4", t.To.String())
	if err != nil {
		return nil, err
	}
	is, err := conn.(*net.TCPConn).MultipathTCP()
	if want := t.Multipath || t.Run; err == nil && is != want {
		err = fmt.Errorf("the connection to %v is MPTCP: %t; want %t", t.To, is, want)
	}
	if err == nil && t.Server.IsValid() {
		conn, err = convertTo(conn.(*net.TCPConn), t)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// exchangePatience limits how long the other end may take to answer.
const exchangePatience = 10 * time.Second

// Transfer describes a transfer, which lasts until End.
type Transfer struct {
	Target
	Up bool // from the client to the server
}

// Begin opens a connection that moves bytes as fast as possible.
func (c *ExchangeClient) Begin(t Transfer, _ *struct{}) error {
	conn, err := c.dial(t.Target)
	if err != nil {
		return err
	}
	kind := byte(sends)
	if t.Up {
		kind = discards
	}
	if _, err := conn.Write(request(kind, 0)); err != nil {
		conn.Close()
		return err
	}
	c.current = conn
	c.moving.Go(func() {
		if t.Up {
			_ = send(conn) // until it is closed; what the server receives is counted
		} else {
			c.take(conn)
		}
	})
	return nil
}

// End ends the transfer with a reset. After a plain close, Linux' MPTCP goes on receiving until its window is full, and
// keeps the memory of both ends for a minute.
func (c *ExchangeClient) End(struct{}, *struct{}) error {
	err := closeWithReset(c.current)
	c.moving.Wait()
	return err
}

func closeWithReset(conn net.Conn) error {
	return errors.Join(conn.(interface{ SetLinger(int) error }).SetLinger(0), conn.Close())
}

// Exchanges describes short connections. Each sends a request, and receives an answer until the server closes.
type Exchanges struct {
	Target
	Size     int // of an answer
	Parallel int
	For      time.Duration
}

// Exchanged is the result of Exchanges.
type Exchanged struct {
	Done    int
	Seconds float64
}

// Exchange opens connections one after the other, some in parallel. All must succeed.
func (c *ExchangeClient) Exchange(x Exchanges, out *Exchanged) error {
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	start := time.Now()
	for range x.Parallel {
		all.Go(func() {
			b := make([]byte, 64<<10)
			for time.Since(start) < x.For && failed.Load() == nil {
				if err := c.exchangeOne(x, b); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	*out = Exchanged{int(done.Load()), time.Since(start).Seconds()}
	if err := failed.Load(); err != nil {
		return fmt.Errorf("after %d connections: %w", out.Done, *err)
	}
	return nil
}

// Request opens one connection like Exchange, and returns the time until the server has closed it.
func (c *ExchangeClient) Request(x Exchanges, took *time.Duration) error {
	start := time.Now()
	err := c.exchangeOne(x, make([]byte, 64<<10))
	*took = time.Since(start)
	return err
}

func (c *ExchangeClient) exchangeOne(x Exchanges, b []byte) error {
	conn, err := c.dial(x.Target)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(exchangePatience)); err != nil {
		return err
	}
	if _, err := conn.Write(request(answers, x.Size)); err != nil {
		return err
	}
	got := 0
	for {
		n, err := conn.Read(b)
		got += n
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		if got != x.Size {
			return fmt.Errorf("an answer of %d bytes, want %d", got, x.Size)
		}
		return nil
	}
}

// Trips describes round trips on one connection.
type Trips struct {
	Target
	N int
}

// Trip returns the time of each round trip.
func (c *ExchangeClient) Trip(t Trips, took *[]time.Duration) error {
	conn, err := c.dial(t.Target)
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range t.N + 1 {
		start := time.Now()
		if err := roundTrip(conn); err != nil {
			return err
		}
		if i > 0 { // the first waits until the relay has connected to the server
			*took = append(*took, time.Since(start))
		}
	}
	return nil
}

func roundTrip(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(exchangePatience)); err != nil {
		return err
	}
	b := request(echoes, 0)
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, b)
	return err
}

// First returns the time from connecting to the first byte of the answer.
func (c *ExchangeClient) First(t Target, took *time.Duration) error {
	start := time.Now()
	conn, err := c.dial(t)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = roundTrip(conn)
	*took = time.Since(start)
	return err
}

// Holding describes connections that stay open and idle until Release.
type Holding struct {
	Target
	N int
}

// Hold opens the connections of a Holding. Each makes one round trip, so that it reaches the server.
func (c *ExchangeClient) Hold(h Holding, _ *struct{}) error {
	const workers = 32
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := w; i < h.N; i += workers {
				conn, err := c.holdOne(h.Target)
				mu.Lock()
				if err == nil {
					c.held = append(c.held, conn)
				} else {
					failed = err
				}
				stop := failed != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	all.Wait()
	if failed != nil {
		return fmt.Errorf("after %d connections: %w", len(c.held), failed)
	}
	return nil
}

func (c *ExchangeClient) holdOne(t Target) (net.Conn, error) {
	conn, err := c.dial(t)
	if err != nil {
		return nil, err
	}
	if err := roundTrip(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// Release closes the connections that Hold opened.
func (c *ExchangeClient) Release(struct{}, *struct{}) error {
	for _, conn := range c.held {
		_ = closeWithReset(conn) // leaves no port in TIME-WAIT
	}
	c.held = nil
	return nil
}
