package known

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cflb/cflbtest"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/paths/topology"
)

func networkOf(t *testing.T, radix int, text string) *Network {
	t.Helper()
	g, err := topology.ReadGraph(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(g, cflbtest.Scheme(t, cflb.Speck, radix))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// parallel returns two hosts behind two routers, which the given number of links join. The gateways' addresses descend,
// so that their order differs from that in the file.
func parallel(links int) string {
	var b strings.Builder
	b.WriteString(`{"nodes": [{"id": "c", "host": true}, {"id": "r1"}, {"id": "r2"}, {"id": "s", "host": true}], "links": [
		{"source": "c", "target": "r1", "source_addresses": ["10.0.1.1", "fd00:1::1"], "target_addresses": ["10.0.1.2", "fd00:1::2"]},
		{"source": "s", "target": "r2", "source_addresses": ["10.0.2.1", "fd00:2::1"], "target_addresses": ["10.0.2.2", "fd00:2::2"]}`)
	for i := range links {
		k := 99 - i
		fmt.Fprintf(&b, `, {"source": "r1", "target": "r2", "source_addresses": ["10.1.%d.1", "fd01:%d::1"], "target_addresses": ["10.1.%d.2", "fd01:%d::2"]}`, k, k, k, k)
	}
	return b.String() + "]}"
}

func flow(from, to string) Flow {
	return Flow{netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), packet.ProtocolTCP}
}

var ports = func() (all []uint16) {
	for p := 61000; p < 65000; p++ {
		all = append(all, uint16(p))
	}
	return all
}()

// TestPathIsTheRouters: the path of each flow is the one that the routers' function chooses, with the time to live at
// which packets arrive there, in both directions and both versions of IP.
func TestPathIsTheRouters(t *testing.T) {
	const links, radix = 7, 8
	n := networkOf(t, radix, parallel(links))
	s := cflbtest.Scheme(t, cflb.Speck, radix)
	for _, ends := range [][2]string{{"10.0.1.1:%d", "10.0.2.1:443"}, {"[fd00:1::1]:%d", "[fd00:2::1]:443"}} {
		seen := map[int]bool{}
		for _, port := range ports[:500] {
			f := flow(fmt.Sprintf(ends[0], port), ends[1])
			for i, dir := range []Flow{f, f.reversed()} {
				got, err := n.Path(dir)
				if err != nil {
					t.Fatal(err)
				}
				u := cflb.Flow(dir.Source.Addr(), dir.Destination.Addr(), dir.Protocol)
				r := cflb.Router{Scheme: s, ID: cflb.RouterID([]string{"r1", "r2"}[i])}
				next := r.Next(cflb.OfPorts(dir.Source.Port(), dir.Destination.Port()), u, 64, links)
				want := 2 * (2 + links - 1 - next) // gateways ascend where links descend
				if i == 1 {
					want++
				}
				if len(got.Links) != 3 || got.Links[1] != want {
					t.Fatalf("%v takes the links %v, want %d in the middle", dir, got.Links, want)
				}
				seen[got.Links[1]] = true
			}
			if got, _ := n.Path(f); !slices.Equal(got.Nodes, []string{"c", "r1", "r2", "s"}) {
				t.Fatalf("%v passes %v", f, got.Nodes)
			}
		}
		if len(seen) != 2*links {
			t.Errorf("%d links are taken, want %d in each direction", len(seen), links)
		}
	}
}

// TestWays: each port belongs to the way that its path is part of, and all ways are found.
func TestWays(t *testing.T) {
	n := networkOf(t, 4, parallel(3))
	f := flow("10.0.1.1:0", "10.0.2.1:443")
	ways, err := n.Ways(f, ports)
	if err != nil || len(ways) != 9 {
		t.Fatalf("%d ways, %v", len(ways), err)
	}
	total := 0
	for _, w := range ways {
		total += len(w.Ports)
		for _, port := range w.Ports[:5] {
			f.Source = netip.AddrPortFrom(f.Source.Addr(), port)
			there, err1 := n.Path(f)
			back, err2 := n.Path(f.reversed())
			if err1 != nil || err2 != nil || !slices.Equal(there.Links, w.There.Links) || !slices.Equal(back.Links, w.Back.Links) {
				t.Fatalf("port %d: %v and %v, want %+v", port, there, back, w)
			}
		}
	}
	if total != len(ports) {
		t.Errorf("%d ports have ways", total)
	}
}

// detoured is two parallel networks of two routers each, with a waypoint between them.
const detoured = `{"nodes": [{"id": "c", "host": true}, {"id": "r1"}, {"id": "r2"}, {"id": "w", "host": true}, {"id": "r3"}, {"id": "s", "host": true}], "links": [
	{"source": "c", "target": "r1", "source_addresses": ["10.0.1.1"], "target_addresses": ["10.0.1.2"]},
	{"source": "r1", "target": "r2", "source_addresses": ["10.1.1.1"], "target_addresses": ["10.1.1.2"]},
	{"source": "r1", "target": "r2", "source_addresses": ["10.1.2.1"], "target_addresses": ["10.1.2.2"]},
	{"source": "w", "target": "r2", "source_addresses": ["10.0.3.1"], "target_addresses": ["10.0.3.2"]},
	{"source": "r2", "target": "r3", "source_addresses": ["10.2.1.1"], "target_addresses": ["10.2.1.2"]},
	{"source": "r2", "target": "r3", "source_addresses": ["10.2.2.1"], "target_addresses": ["10.2.2.2"]},
	{"source": "s", "target": "r3", "source_addresses": ["10.0.2.1"], "target_addresses": ["10.0.2.2"]}]}`

// TestDetours: one source port leads along both legs of a detour. Routers of the second leg see the time to live that
// is left at the waypoint. Packets from a tunnel have passed only the waypoint.
func TestDetours(t *testing.T) {
	n := networkOf(t, 2, detoured)
	s := cflbtest.Scheme(t, cflb.Speck, 2)
	next := func(router string, f Flow, ttl uint8) int {
		u := cflb.Flow(f.Source.Addr(), f.Destination.Addr(), f.Protocol)
		return cflb.Router{Scheme: s, ID: cflb.RouterID(router)}.Next(cflb.OfPorts(f.Source.Port(), f.Destination.Port()), u, ttl, 2)
	}
	near, far := flow("10.0.1.1:0", "10.0.3.1:40000"), flow("10.0.3.1:0", "10.0.2.1:443")
	from := func(f Flow, port uint16) Flow {
		f.Source = netip.AddrPortFrom(f.Source.Addr(), port)
		return f
	}
	for name, tc := range map[string]struct {
		detour      Detour
		ttl         uint8 // that r2 sees, towards the server
		want        int
		there, back []string
	}{
		"translated": {Detour{Legs: []Flow{near, far}}, 61, 16, []string{"c", "r1", "r2", "w", "r2", "r3", "s"}, []string{"s", "r3", "r2", "w", "r2", "r1", "c"}},
		"tunnelled":  {Detour{Legs: []Flow{far}, Tunnelled: true}, 63, 4, []string{"w", "r2", "r3", "s"}, []string{"s", "r3", "r2", "w"}},
	} {
		ways, err := n.WaysVia(tc.detour, ports)
		if err != nil || len(ways) != tc.want {
			t.Fatalf("%s: %d ways, want %d: %v", name, len(ways), tc.want, err)
		}
		for _, w := range ways {
			if !slices.Equal(w.There.Nodes, tc.there) || !slices.Equal(w.Back.Nodes, tc.back) {
				t.Errorf("%s: %v and %v", name, w.There.Nodes, w.Back.Nodes)
			}
			for _, port := range w.Ports[:5] {
				f := from(far, port)
				there := []int{6, 2 * (4 + next("r2", f, tc.ttl)), 13}
				back := []int{12, 2*(4+next("r3", f.reversed(), 64)) + 1, 7}
				if len(tc.detour.Legs) == 2 {
					f = from(near, port)
					there = append([]int{0, 2 * (1 + next("r1", f, 64)), 7}, there...)
					back = append(back, 6, 2*(1+next("r2", f.reversed(), 61))+1, 1)
				}
				if !slices.Equal(w.There.Links, there) || !slices.Equal(w.Back.Links, back) {
					t.Fatalf("%s, port %d: %v and %v, want %v and %v", name, port, w.There.Links, w.Back.Links, there, back)
				}
			}
		}
	}
	for name, d := range map[string]Detour{"no legs": {}, "unknown waypoint": {Legs: []Flow{flow("10.0.1.1:0", "10.9.9.9:1"), flow("10.9.9.9:0", "10.0.2.1:443")}}} {
		if _, err := n.WaysVia(d, ports); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestInterfaces: packets to and from an address of an interface use its link.
func TestInterfaces(t *testing.T) {
	n := networkOf(t, 2, `{"nodes": [{"id": "c", "host": true}, {"id": "r"}, {"id": 7, "host": true, "addresses": ["10.9.9.9"]}], "edges": [
		{"source": "c", "target": "r", "source_addresses": ["10.0.1.1"]},
		{"source": 7, "target": "r", "source_addresses": ["10.0.2.1"]},
		{"source": "r", "target": 7, "target_addresses": ["10.0.3.1"]}]}`)
	for to, link := range map[string]int{"10.0.2.1:443": 3, "10.0.3.1:443": 4} {
		got, err := n.Path(flow("10.0.1.1:61000", to))
		if err != nil || !slices.Equal(got.Links, []int{0, link}) || got.Nodes[2] != "7" {
			t.Errorf("to %s: %+v, %v", to, got, err)
		}
	}
	if _, err := n.Path(flow("10.9.9.9:443", "10.0.1.1:61000")); !errors.Is(err, ErrNoPath) {
		t.Errorf("a host with two links chooses among them: %v", err)
	}
}

// TestBadQuestions: for flows without a computable path, the error names the reason.
func TestBadQuestions(t *testing.T) {
	n := networkOf(t, 4, parallel(3))
	for _, tc := range []struct {
		name, from, to string
		want           error
	}{
		{"unknown destination", "10.0.1.1:61000", "10.7.7.7:443", ErrUnknown},
		{"unknown source", "10.7.7.7:61000", "10.0.2.1:443", ErrUnknown},
		{"two families", "10.0.1.1:61000", "[fd00:2::1]:443", ErrFamily},
	} {
		if _, err := n.Path(flow(tc.from, tc.to)); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if _, err := n.Ways(flow(tc.from, tc.to), ports); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if _, err := networkOf(t, 4, parallel(5)).Path(flow("10.0.1.1:61000", "10.0.2.1:443")); !errors.Is(err, ErrRadix) || !strings.Contains(err.Error(), "r1: ") {
		t.Errorf("five next hops with the radix 4: %v", err)
	}
	apart := networkOf(t, 2, `{"nodes": [{"id": "a", "addresses": ["10.0.0.1"]}, {"id": "b", "addresses": ["10.0.0.2"]}], "links": []}`)
	if _, err := apart.Path(flow("10.0.0.1:61000", "10.0.0.2:443")); !errors.Is(err, ErrNoPath) {
		t.Errorf("without a link: %v", err)
	}
	nameless := networkOf(t, 2, strings.ReplaceAll(parallel(2), `"10.1.99.2", `, ""))
	if _, err := nameless.Path(flow("10.0.1.1:61000", "10.0.2.1:443")); err == nil || !strings.Contains(err.Error(), "no address at r2") {
		t.Errorf("a gateway without address: %v", err)
	}
}

// TestWrongRadixAtOneRouter: if one router has another radix, computed ports lead along other paths, but always to the
// destination.
func TestWrongRadixAtOneRouter(t *testing.T) {
	n := networkOf(t, 4, parallel(3))
	f := flow("10.0.1.1:0", "10.0.2.1:443")
	ways, err := n.Ways(f, ports)
	if err != nil {
		t.Fatal(err)
	}
	wrong := cflb.Router{Scheme: cflbtest.Scheme(t, cflb.Speck, 5), ID: cflb.RouterID("r1")}
	u := cflb.Flow(f.Source.Addr(), f.Destination.Addr(), f.Protocol)
	elsewhere := 0
	for _, w := range ways {
		for _, port := range w.Ports {
			next := wrong.Next(cflb.OfPorts(port, 443), u, 64, 3)
			if next < 0 || next >= 3 {
				t.Fatalf("port %d has the next hop %d of 3", port, next)
			}
			if w.There.Links[1] != 2*(2+2-next) {
				elsewhere++
			}
		}
	}
	if share := float64(elsewhere) / float64(len(ports)); share < 0.5 || share > 0.8 {
		t.Errorf("%.2f of the ports lead elsewhere, want about two thirds", share)
	}
}

func TestAddressesTwice(t *testing.T) {
	g, err := topology.ReadGraph(strings.NewReader(`{"nodes": [{"id": "a", "addresses": ["10.0.0.1"]}, {"id": "b", "addresses": ["10.0.0.1"]}], "links": []}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(g, cflbtest.Scheme(t, cflb.Speck, 2)); err == nil || !strings.Contains(err.Error(), "10.0.0.1 belongs to a and to b") {
		t.Error(err)
	}
}

// TestRenewed: links keep their numbers if others are added before them or removed.
func TestRenewed(t *testing.T) {
	before := networkOf(t, 4, parallel(3))
	f := flow("10.0.1.1:61000", "10.0.2.1:443")
	there, err := before.Path(f)
	if err != nil {
		t.Fatal(err)
	}
	g, err := topology.ReadGraph(strings.NewReader(strings.Replace(parallel(3), `"links": [`,
		`"links": [{"source": "r1", "target": "r2", "weight": 3}, {"source": "c", "target": "r2", "down": true},`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	after, err := before.Renewed(g, cflbtest.Scheme(t, cflb.Speck, 4))
	if err != nil {
		t.Fatal(err)
	}
	if now, err := after.Path(f); err != nil || !slices.Equal(now.Links, there.Links) {
		t.Errorf("links %v, were %v: %v", now.Links, there.Links, err)
	}
}
