package runner

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

const (
	referenceDelay = 5 * time.Millisecond
	// echoInterval is the time between echoes: short enough for a percentile in one run, long enough to cause
	// no load.
	echoInterval = 10 * time.Millisecond
	echoPort     = 7 // RFC 862
	// echoesKept is the number of echoes in twice the longest run.
	echoesKept = int(2 * LongestRun / echoInterval)
	// echoLost is the lateness for which a lost echo counts.
	echoLost = time.Second
)

// Reference is a flow of datagrams that one host echoes to another over a separate link, beside all measured
// networks. Any delay beyond the link's own is caused by the machine, and programs in the other networks
// suffer it, too. A link emulator measures only its own lateness. The reference also measures how long
// ordinary programs wait for a processor.
type Reference struct {
	Net        *testbed.Network // beside all others
	delay      time.Duration    // the link's round trip
	ask, reply net.PacketConn   // the ends
	stop       context.CancelFunc
	done       sync.WaitGroup
	began      time.Time

	mu     sync.Mutex
	echoes []echo // in the order in which they came back
}

// echo is the round trip of one datagram.
type echo struct {
	due  time.Duration // when the echo was due, since the reference began
	late time.Duration // beyond the link's delay
}

// StartReference builds a network of two hosts and begins. backend is as for the networks that are measured on.
func StartReference(ctx context.Context, backend string, log *slog.Logger) (*Reference, error) {
	r := &Reference{}
	var link testbed.LinkParams
	if backend != testbed.BackendVeth { // which shapes nothing
		link.Delay, r.delay = referenceDelay, 2*referenceDelay
	}
	var err error
	r.Net, err = testbed.Build(ctx, testbed.Spec{
		Hosts:   []testbed.HostSpec{{Name: "ask"}, {Name: "reply"}},
		Links:   []testbed.LinkSpec{{Name: "reference", A: "ask", B: "reply", AtoB: link, BtoA: link}},
		Backend: backend,
	}, log)
	if err != nil {
		return nil, fmt.Errorf("reference flow: %w", err)
	}
	if r.ask, err = listenOn(r.Net.Host("ask")); err == nil {
		r.reply, err = listenOn(r.Net.Host("reply"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reference flow: %w", err), r.Close())
	}
	r.began = time.Now()
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.done.Go(func() { r.send(ctx) })
	r.done.Go(r.echo)
	r.done.Go(r.receive)
	return r, nil
}

func listenOn(h *testbed.Host) (net.PacketConn, error) {
	return testbed.On(h, func() (net.PacketConn, error) {
		return net.ListenPacket("udp4", netip.AddrPortFrom(h.Addr4(), echoPort).String())
	})
}

// send sends a datagram every interval. It contains the time at which it was due, so that a delayed sender
// also counts as late. The kernel's clock wakes the sender, because timers of the Go runtime are a
// millisecond late in an idle process.
func (r *Reference) send(ctx context.Context) {
	var datagram [8]byte
	for due := time.Duration(0); ctx.Err() == nil; due += echoInterval {
		rest := unix.NsecToTimespec(int64(max(due-time.Since(r.began), 0)))
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &rest, nil) // a signal can wake it early, which does no harm
		binary.BigEndian.PutUint64(datagram[:], uint64(due))
		_, _ = r.ask.WriteTo(datagram[:], r.reply.LocalAddr()) // one not sent is one lost
	}
}

// echo answers until its socket is closed.
func (r *Reference) echo() {
	var datagram [8]byte
	for {
		n, from, err := r.reply.ReadFrom(datagram[:])
		if err != nil {
			return
		}
		_, _ = r.reply.WriteTo(datagram[:n], from) // one not sent is one lost
	}
}

func (r *Reference) receive() {
	var datagram [8]byte
	for {
		n, _, err := r.ask.ReadFrom(datagram[:])
		now := time.Since(r.began)
		if err != nil {
			return
		}
		if n == len(datagram) {
			due := time.Duration(binary.BigEndian.Uint64(datagram[:]))
			r.mu.Lock()
			if len(r.echoes) == 2*echoesKept {
				r.echoes = slices.Delete(r.echoes, 0, echoesKept)
			}
			r.echoes = append(r.echoes, echo{due, now - due - r.delay})
			r.mu.Unlock()
		}
	}
}

// Lateness returns the 99th percentile of the lateness of echoes sent since from.
func (r *Reference) Lateness(from time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return lateness(r.echoes, from.Sub(r.began), time.Since(r.began)-2*r.delay-echoInterval)
}

// lateness counts missing echoes as lost, except those at both ends of the period.
func lateness(echoes []echo, from, to time.Duration) time.Duration {
	var late []float64
	for _, e := range echoes {
		if e.due >= from && e.due < to {
			late = append(late, float64(max(e.late, 0)))
		}
	}
	for missing := int((to-from)/echoInterval) - 2 - len(late); missing > 0; missing-- {
		late = append(late, float64(echoLost))
	}
	if len(late) == 0 {
		return 0
	}
	return time.Duration(stats.Quantile(late, 0.99))
}

// Close ends the flow and its network.
func (r *Reference) Close() error {
	if r.stop != nil {
		r.stop()
	}
	for _, c := range []net.PacketConn{r.ask, r.reply} {
		if c != nil {
			_ = c.Close() // nothing was buffered
		}
	}
	r.done.Wait()
	return r.Net.Close()
}
