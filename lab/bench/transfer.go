package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// sink takes what connections bring, on the chain's server.
type sink struct {
	listener net.Listener
	received atomic.Int64 // bytes, of all connections
	serving  sync.WaitGroup
}

// startSink listens on all of the server's addresses.
func (s *network) startSink(ctx context.Context) (*sink, error) {
	var k sink
	err := s.Host(serverHost).Do(func() (err error) {
		at := netip.AddrPortFrom(netip.IPv4Unspecified(), crossingPort)
		k.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp4", at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take what the connections bring: %w", err)
	}
	k.serving.Go(func() {
		for {
			conn, err := k.listener.Accept()
			if err != nil {
				return // it was closed
			}
			k.serving.Go(func() { k.swallow(conn) })
		}
	})
	return &k, nil
}

func (k *sink) swallow(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 256<<10)
	for {
		n, err := conn.Read(buffer)
		k.received.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// close returns when all connections have ended, which their clients see to.
func (k *sink) close() {
	k.listener.Close()
	k.serving.Wait()
}

// transferred has the counters of one connection over a measurement.
type transferred struct {
	bytes   float64
	seconds float64
	spent   time.Duration // by all processors together, for all that is ours
	others  time.Duration // what the machine did besides
}

func (t transferred) goodput() float64 { return t.bytes * 8 / 1e6 / t.seconds } // Mbit/s
func (t transferred) perGB() float64   { return t.spent.Seconds() / (t.bytes / 1e9) }

// transferPlan sets how long to measure a connection, and how long to wait before while it speeds up.
type transferPlan struct {
	rampUp, look time.Duration
	rate         int // Mbit/s that are offered; 0: as much as TCP takes
}

// transfer sends over a connection that was just opened, and closes it.
func (k *sink) transfer(ctx context.Context, conn net.Conn, plan transferPlan) (t transferred, err error) {
	ended := make(chan error, 1)
	go func() { ended <- send(conn, plan.rate) }()
	defer func() {
		conn.Close()
		if sendErr := <-ended; !errors.Is(sendErr, net.ErrClosed) {
			err = errors.Join(err, sendErr)
		}
	}()
	if err := pause(ctx, plan.rampUp); err != nil {
		return t, err
	}
	before, err := k.look()
	if err != nil {
		return t, err
	}
	if err := pause(ctx, plan.look); err != nil {
		return t, err
	}
	after, err := k.look()
	if err != nil {
		return t, err
	}
	t = transferred{bytes: float64(after.received - before.received), seconds: after.at.Sub(before.at).Seconds(),
		spent: after.spent.since(before.spent)}
	t.others = max(0, after.busy-before.busy-t.spent)
	if t.bytes == 0 {
		return t, errors.New("nothing arrives")
	}
	return t, nil
}

// sight is a snapshot of the counters.
type sight struct {
	at       time.Time
	received int64
	spent    spent
	busy     time.Duration
}

func (k *sink) look() (v sight, err error) {
	if v.spent, err = readSpent(); err != nil {
		return v, err
	}
	if v.busy, err = readBusy(); err != nil {
		return v, err
	}
	v.at, v.received = time.Now(), k.received.Load()
	return v, nil
}

// send writes until the connection is closed.
func send(w io.Writer, mbps int) error {
	data := make([]byte, 128<<10)
	next := time.Now()
	for {
		if _, err := w.Write(data); err != nil {
			return err
		}
		if mbps > 0 {
			next = next.Add(time.Duration(float64(len(data)*8) / float64(mbps) * float64(time.Microsecond)))
			time.Sleep(time.Until(next))
		}
	}
}
