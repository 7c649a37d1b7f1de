package paths

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// steeredNetwork forwards probes through CFLB routers, from node 0 on. A node without next hops is the destination.
type steeredNetwork struct {
	scheme   *cflb.Scheme
	next     [][]int
	arrivals chan trace.Arrival
}

// end returns the node where a packet's time to live ends, or the destination.
func (w *steeredNetwork) end(p *packet.Packet) (at int, err error) {
	h, err := cflb.PortsOnly.Read(p)
	for ttl := h.TTL; err == nil && ttl > 1 && len(w.next[at]) > 0; ttl-- {
		at = w.next[at][cflb.Router{Scheme: w.scheme, ID: uint32(at)}.Next(h.Controlled, h.Uncontrolled, ttl, len(w.next[at]))]
	}
	return at, err
}

func (w *steeredNetwork) Arrivals() <-chan trace.Arrival { return w.arrivals }

func (w *steeredNetwork) Send(b []byte) error {
	p, err := packet.Parse(b)
	if err != nil {
		return err
	}
	at, err := w.end(p)
	if err != nil {
		return err
	}
	reply := packet.Segment(p.To(), p.From(), packet.TCP{Ack: p.TCP.Seq + 1, Flags: packet.RST | packet.ACK}, nil)
	if len(w.next[at]) > 0 {
		reply = &packet.Packet{
			V4:   &packet.IPv4{TTL: 64, Src: addrOf(at), Dst: wireSource},
			ICMP: &packet.ICMP{Type: packet.TimeExceeded},
		}
		if err := reply.SetQuote(b[:28]); err != nil {
			return err
		}
	}
	if err := reply.Seal(); err != nil {
		return err
	}
	w.arrivals <- trace.Arrival{At: time.Now().Add(time.Millisecond), Bytes: reply.Bytes()}
	return nil
}

// TestRoutedPaths: through CFLB routers few probes find all paths, and packets from the computed ports take them.
func TestRoutedPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := cflb.NewPermutation(cflb.Speck, cflb.PortsOnly.Bits(), []byte("secret"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := cflb.New(4, p)
		if err != nil {
			t.Fatal(err)
		}
		w := &steeredNetwork{s, [][]int{{1}, {2, 3, 4}, {5, 6}, {5}, {6}, {7}, {7}, nil}, make(chan trace.Arrival, 100)}
		const ttl, ways = 64, 4
		prober := NewWire(w, Template{
			Source: wireSource, Destination: wireDestination, Protocol: packet.ProtocolTCP, Port: 443,
			Random: rand.New(rand.NewPCG(1, 2)),
		})
		g, found, net, err := DiscoverRouted(t.Context(), prober, s, 30, ttl)
		if err != nil {
			t.Fatal(err)
		}
		if !g.Reached || g.Paths() != ways || len(found) != ways || len(net.Suspects) > 0 || g.Probes > 20 {
			t.Errorf("reached %v, %d paths, ports of %d, suspects %v, %d probes", g.Reached, g.Paths(), len(found), net.Suspects, g.Probes)
		}
		for _, path := range found {
			ports := prober.Ports(path.Flow)
			for i, want := range path.Vertices[:len(path.Vertices)-1] {
				// The packet as router i receives it, and as it would end there.
				at := 0
				for hop := range i {
					c := cflb.OfPorts(ports.Source, ports.Destination)
					u := cflb.Flow(wireSource, wireDestination, packet.ProtocolTCP)
					at = w.next[at][cflb.Router{Scheme: s, ID: uint32(at)}.Next(c, u, uint8(ttl-hop), len(w.next[at]))]
				}
				if addrOf(at) != want {
					t.Errorf("ports %v: %v at hop %d, not %v", ports, addrOf(at), i+1, want)
				}
			}
			if last(path.Vertices) != (netip.Addr{}) && last(path.Vertices) != wireDestination {
				t.Errorf("the path ends at %v", last(path.Vertices))
			}
		}
	})
}
