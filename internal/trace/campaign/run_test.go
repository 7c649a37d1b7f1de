package campaign

import (
	"context"
	"encoding/binary"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// crowd has destinations behind one router each. They hold their answers back until they are released, and send each three times.
type crowd struct {
	mu       sync.Mutex
	open     int
	mostOpen int
	sent     []time.Time // probes
	held     []func()
	released bool
}

func (c *crowd) Open(destination netip.Addr) (Network, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	c.mostOpen = max(c.mostOpen, c.open)
	return &member{c, destination, make(chan trace.Arrival, 64)}, nil
}

// release has all destinations answer at once, and from now on as they are asked.
func (c *crowd) release() {
	c.mu.Lock()
	held := c.held
	c.released, c.held = true, nil
	c.mu.Unlock()
	for _, answer := range held {
		answer()
	}
}

// member is the network to one destination of a crowd.
type member struct {
	*crowd
	destination netip.Addr
	arrivals    chan trace.Arrival
}

func (m *member) Source() netip.Addr             { return netip.MustParseAddr("192.0.2.1") }
func (m *member) Arrivals() <-chan trace.Arrival { return m.arrivals }

func (m *member) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
	return nil
}

func (m *member) Send(b []byte) error {
	p, err := packet.Parse(b)
	if err != nil {
		return err
	}
	if p.TCP.Flags.Has(packet.RST) {
		return nil // ends what a SYN began, beside the rate
	}
	reply := packet.Segment(p.To(), p.From(), packet.TCP{Ack: p.TCP.Seq + 1, Flags: packet.SYN | packet.ACK}, nil)
	if p.V4.TTL == 1 {
		reply = &packet.Packet{
			V4:   &packet.IPv4{TTL: 64, Src: netip.MustParseAddr("10.0.0.1"), Dst: m.Source()},
			ICMP: &packet.ICMP{Type: packet.TimeExceeded},
		}
		if err := reply.SetQuote(b); err != nil {
			return err
		}
	}
	if err := reply.Seal(); err != nil {
		return err
	}
	answer := func() {
		for range 3 {
			select {
			case m.arrivals <- trace.Arrival{At: time.Now(), Bytes: reply.Bytes()}:
			default: // as a full socket
			}
		}
	}
	m.mu.Lock()
	m.sent = append(m.sent, time.Now())
	released := m.released
	if !released {
		m.held = append(m.held, answer)
	}
	m.mu.Unlock()
	if released {
		answer()
	}
	return nil
}

// liveHeap returns the bytes in use.
func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// TestTenThousandAnswerAtOnce: 10,000 traces at a time, whose destinations answer in one moment, find their paths, keep to the
// common rate, and need little memory each.
func TestTenThousandAnswerAtOnce(t *testing.T) {
	const (
		destinations = 10_000
		rate         = 20_000.
		burst        = rate / 20
		each         = 40 << 10 // bytes
	)
	before := liveHeap()
	synctest.Test(t, func(t *testing.T) {
		net := &crowd{}
		probe, err := ParseProbe("IP / TCP", "path measurement, see https://example.org/probes")
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		c := Campaign{
			Probe: probe, Parallel: destinations, Rate: rate, MaxHops: 2, Open: net.Open,
			Resolve: func(_ context.Context, name string) (netip.Addr, error) { return netip.ParseAddr(name) },
			Done: func(r *Record) error {
				if r.Trace == nil || r.Trace.Distance != 2 {
					t.Errorf("%+v", r)
				}
				found++
				return nil
			},
		}
		for i := range uint32(destinations) {
			var a [4]byte
			binary.BigEndian.PutUint32(a[:], 198<<24|18<<16+i)
			c.Names = append(c.Names, netip.AddrFrom4(a).String())
		}
		var grown uint64
		time.AfterFunc(2*time.Second, func() {
			grown = liveHeap() - before
			net.release()
		})
		if err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if found != destinations || net.mostOpen != destinations || net.open != 0 {
			t.Errorf("%d results; %d networks were open at a time, %d are still", found, net.mostOpen, net.open)
		}
		if grown > destinations*each {
			t.Errorf("%d bytes for each trace in progress, at most %d", grown/destinations, each)
		}
		t.Logf("%d bytes for each trace in progress, %d packets", grown/destinations, len(net.sent))
		// After any packet, those that follow within a time are no more than the burst and the rate allow.
		least := 0.
		for i, at := range net.sent {
			ahead := float64(i) - rate*at.Sub(net.sent[0]).Seconds()
			if ahead > least+burst+1 {
				t.Fatalf("packet %d is sent %.0f packets too early", i, ahead-least-burst)
			}
			least = min(least, ahead)
		}
	})
}
