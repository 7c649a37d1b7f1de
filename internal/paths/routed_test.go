package paths

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cflb/cflbtest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// steeredNetwork forwards probes through CFLB routers. They begin at node 0. The destination has no next hops.
type steeredNetwork struct {
	scheme   *cflb.Scheme
	next     [][]int
	arrivals chan trace.Arrival
}

// end returns the node at which a packet's time to live ends, or the destination.
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

// TestRoutedPaths: few probes find all paths through CFLB routers, and packets from the computed ports take these
// paths.
func TestRoutedPaths(t *testing.T) {
	long := make([][]int, 18) // 15 routers, of which the third and the seventh choose, and the destination
	for i := range 15 {
		long[i] = []int{i + 1}
	}
	long[2], long[6], long[16], long[17] = []int{3, 16}, []int{7, 17}, []int{4}, []int{8}
	for name, c := range map[string]struct {
		radix  int
		next   [][]int
		paths  int
		probes int
	}{
		"short":        {4, [][]int{{1}, {2, 3, 4}, {5, 6}, {5}, {6}, {7}, {7}, nil}, 4, 20},
		"15 routers":   {16, long, 4, 40},
		"two lengths":  {4, [][]int{{1, 2}, {3}, {4}, {4}, {5, 6}, {7}, {7}, nil}, 4, 22},
		"one way only": {16, [][]int{{1}, {2}, {3}, {4}, {5}, {6}, {7}, nil}, 1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				routedPaths(t, cflbtest.Scheme(t, cflb.Speck, c.radix), c.next, c.paths, c.probes)
			})
		})
	}
}

func routedPaths(t *testing.T, s *cflb.Scheme, next [][]int, ways, most int) {
	const ttl = 64
	w := &steeredNetwork{s, next, make(chan trace.Arrival, 100)}
	prober := NewWire(w, Template{
		Source: wireSource, Destination: wireDestination, Protocol: packet.ProtocolTCP, Port: 443,
		Random: rand.New(rand.NewPCG(1, 2)),
	})
	r, err := DiscoverRouted(t.Context(), prober, s, cflb.Options{MaxDistance: 30}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	if g := r.Graph; !g.Reached || g.Paths() != ways || len(r.Paths) != ways || r.Unled != 0 || g.Probes > most {
		t.Errorf("reached %v, %d paths, ports of %d and not of %d, %d probes", g.Reached, g.Paths(), len(r.Paths), r.Unled, g.Probes)
	}
	for _, path := range r.Paths {
		ports := prober.Ports(path.Flow)
		u, c := cflb.Flow(wireSource, wireDestination, packet.ProtocolTCP), cflb.OfPorts(ports.Source, ports.Destination)
		at := 0
		for hop, want := range path.Vertices[:len(path.Vertices)-1] {
			if addrOf(at) != want {
				t.Errorf("ports %v: %v at hop %d, not %v", ports, addrOf(at), hop+1, want)
			}
			at = next[at][cflb.Router{Scheme: s, ID: uint32(at)}.Next(c, u, uint8(ttl-hop), len(next[at]))]
		}
		if last(path.Vertices) != wireDestination {
			t.Errorf("the path ends at %v", last(path.Vertices))
		}
	}
}
