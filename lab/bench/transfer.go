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

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

// sink receives and discards what connections send to the chain's server.
type sink struct {
	listener net.Listener
	received atomic.Int64 // bytes, of all connections
	serving  sync.WaitGroup
}

// startSink listens on all of the server's addresses.
func (s *network) startSink(ctx context.Context) (*sink, error) {
	var k sink
	var err error
	k.listener, err = testbed.On(s.Host(serverHost), func() (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), transferPort).String())
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
			k.serving.Go(func() { k.discard(conn) })
		}
	})
	return &k, nil
}

func (k *sink) discard(conn net.Conn) {
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

// close stops listening, and returns when all connections have ended. Their clients must end them.
func (k *sink) close() {
	k.listener.Close()
	k.serving.Wait()
}

// transferred counts what one connection did during a measurement.
type transferred struct {
	bytes   float64
	seconds float64
	spent   time.Duration // by all processors together, for this benchmark's processes
	others  time.Duration // processor time of other programs
}

func (t transferred) goodput() float64 { return t.bytes * 8 / 1e6 / t.seconds } // Mbit/s
func (t transferred) perGB() float64   { return t.spent.Seconds() / (t.bytes / 1e9) }

// transferPlan sets how long to measure a connection, and how long to wait before while it speeds up.
type transferPlan struct {
	rampUp, look time.Duration
}

// transfer sends over a connection that was just opened, and closes it.
func (k *sink) transfer(ctx context.Context, conn net.Conn, plan transferPlan) (t transferred, err error) {
	ended := make(chan error, 1)
	go func() { ended <- send(conn) }()
	defer func() {
		conn.Close()
		if sendErr := <-ended; !errors.Is(sendErr, net.ErrClosed) {
			err = errors.Join(err, sendErr)
		}
	}()
	if err := crew.Pause(ctx, plan.rampUp); err != nil {
		return t, err
	}
	before, err := k.snapshot()
	if err != nil {
		return t, err
	}
	if err := crew.Pause(ctx, plan.look); err != nil {
		return t, err
	}
	after, err := k.snapshot()
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

// snapshot is a snapshot of the counters.
type snapshot struct {
	at       time.Time
	received int64
	spent    processTimes
	busy     time.Duration
}

func (k *sink) snapshot() (v snapshot, err error) {
	if v.spent, err = readProcessTimes(); err != nil {
		return v, err
	}
	machine, err := crew.ReadMachineTime()
	if err != nil {
		return v, err
	}
	v.at, v.received, v.busy = time.Now(), k.received.Load(), machine.Busy
	return v, nil
}

// send writes until the connection is closed.
func send(w io.Writer) error {
	data := make([]byte, 128<<10)
	for {
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
}
