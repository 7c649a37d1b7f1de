package paths

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// wireNetwork answers probes in virtual time. Router d has the address 10.0.0.d. The destination is after the last
// router.
type wireNetwork struct {
	routers  int
	every    time.Duration // time between two answers of a router
	nat      int           // distance from which a NAT changes the source port; 0: none
	last     map[int]time.Time
	arrivals chan trace.Arrival
	sent     int
}

var (
	wireSource      = netip.MustParseAddr("192.0.2.1")
	wireDestination = netip.MustParseAddr("198.51.100.2")
)

func (w *wireNetwork) Arrivals() <-chan trace.Arrival { return w.arrivals }

func (w *wireNetwork) Send(b []byte) error {
	w.sent++
	p, err := packet.Parse(b)
	if err != nil {
		return err
	}
	d := int(p.V4.TTL)
	if d > w.routers {
		answer := packet.Segment(p.To(), p.From(), packet.TCP{Ack: p.TCP.Seq + 1, Flags: packet.RST | packet.ACK}, nil)
		return w.deliver(answer)
	}
	if w.every > 0 && time.Since(w.last[d]) < w.every {
		return nil
	}
	w.last[d] = time.Now()
	if w.nat > 0 && d >= w.nat {
		p.TCP.SrcPort++
		p.TCP.Seq++ // some NATs change it as well
		if err := p.Seal(); err != nil {
			return err
		}
	}
	reply := &packet.Packet{
		V4:   &packet.IPv4{TTL: 64, Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(d)}), Dst: wireSource},
		ICMP: &packet.ICMP{Type: packet.TimeExceeded},
	}
	if err := reply.SetQuote(p.Bytes()[:28]); err != nil {
		return err
	}
	return w.deliver(reply)
}

func (w *wireNetwork) deliver(p *packet.Packet) error {
	if err := p.Seal(); err != nil {
		return err
	}
	w.arrivals <- trace.Arrival{At: time.Now().Add(time.Millisecond), Bytes: p.Bytes()}
	return nil
}

func exploreWire(t *testing.T, w *wireNetwork) *Graph {
	t.Helper()
	w.last, w.arrivals = map[int]time.Time{}, make(chan trace.Arrival, 1000)
	prober := NewWire(w, Template{
		Source: wireSource, Destination: wireDestination, Protocol: packet.ProtocolTCP, Port: 443,
		Random: rand.New(rand.NewPCG(1, 2)),
	})
	g, err := Explore(context.Background(), prober, Options{PerRouter: true})
	if err != nil {
		t.Fatal(err)
	}
	if g.Probes != w.sent {
		t.Errorf("%d probes are counted, not %d", g.Probes, w.sent)
	}
	return g
}

func TestProbesOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := exploreWire(t, &wireNetwork{routers: 3})
		if !g.Reached || len(g.Hops) != 4 || g.Paths() != 1 || g.Probes != 4*6 {
			t.Errorf("reached %v, %d hops, %d paths, %d probes", g.Reached, len(g.Hops), g.Paths(), g.Probes)
		}
	})
}

// TestRateLimitedRouters: routers that answer only once a second do not count as silent.
func TestRateLimitedRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := exploreWire(t, &wireNetwork{routers: 2, every: time.Second})
		if !g.Reached || len(g.Hops) != 3 || g.Paths() != 1 {
			t.Errorf("reached %v, %d hops, %d paths", g.Reached, len(g.Hops), g.Paths())
		}
	})
}

// TestProbesBehindANAT: quotes with changed ports are recognised, and the change is reported.
func TestProbesBehindANAT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := exploreWire(t, &wireNetwork{routers: 3, nat: 2})
		if len(g.Hops) != 4 || g.Paths() != 1 {
			t.Fatalf("%d hops, %d paths", len(g.Hops), g.Paths())
		}
		for i, want := range []bool{false, true, true, false} {
			if got := g.Hops[i].Vertices[0].Translated; got != want {
				t.Errorf("hop %d: translated %v", i+1, got)
			}
		}
	})
}

// FuzzTake: no packet makes the prober panic.
func FuzzTake(f *testing.F) {
	f.Add([]byte{0x45})
	f.Fuzz(func(_ *testing.T, b []byte) {
		w := NewWire(nil, Template{Source: wireSource, Destination: wireDestination, Random: rand.New(rand.NewPCG(1, 2))})
		w.take(trace.Arrival{Bytes: b})
	})
}
