package forward

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

// host has a forwarder at work between a client's network and the rest of the
// world.
type host struct {
	*Forwarder
	ns    *netnstest.NS
	peer  *netnstest.NS // at the other ends of its interfaces
	index int           // of the interface to clients
	mac   [6]byte
}

// Networks 10.1.0.0/24 and fd01::/64 are the client's; everything else is behind a
// router with a neighbour entry. 10.9.0.0/16 leads to one without, and 10.8.0.0/16
// nowhere.
func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{ns: netnstest.New(t), peer: netnstest.New(t)}
	for i, name := range []string{"in", "out"} {
		addresses := []string{[]string{"10.1.0.2/24", "10.2.0.2/24"}[i], []string{"fd01::2/64", "fd02::2/64"}[i]}
		netnstest.Veth(t, netnstest.End{NS: h.ns, Name: name, Addresses: addresses}, netnstest.End{NS: h.peer, Name: name})
	}
	for _, line := range [][]string{
		{"neigh", "add", "10.1.0.1", "dev", "in"}, {"neigh", "add", "fd01::1", "dev", "in"},
		{"neigh", "add", "10.2.0.1", "dev", "out"}, {"neigh", "add", "fd02::1", "dev", "out"},
	} {
		h.ns.Output(t, "ip", append(line, "lladdr", "02:00:00:00:00:01", "nud", "permanent")...)
	}
	for _, line := range [][]string{
		{"route", "add", "default", "via", "10.2.0.1"}, {"-6", "route", "add", "default", "via", "fd02::1"},
		{"route", "add", "10.9.0.0/16", "via", "10.2.0.9"}, {"route", "add", "unreachable", "10.8.0.0/16"},
		{"route", "add", "10.7.0.0/16", "via", "10.2.0.1", "mtu", "lock", "1400"},
	} {
		h.ns.Output(t, "ip", line...)
	}
	h.ns.Output(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	h.ns.Must(t, func() (err error) {
		if h.index, h.mac, err = hardware("in"); err != nil {
			return err
		}
		h.Forwarder, err = Open()
		return err
	})
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// add has a connection forwarded after a packet in each direction, with the numbers that
// packets of these tests have.
func (h *host) add(t testing.TB, flow Flow) {
	t.Helper()
	if err := h.Watch(flow, Passed{}); err != nil {
		t.Fatal(err)
	}
	for _, way := range []Tuple{flow.Origin, flow.Reply} {
		h.check(t, "watched", h.packet(way), 0, nil)
	}
	if err := h.Forward(flow); err != nil {
		t.Fatal(err)
	}
}

// passed is what was forwarded of a connection, and whether it has ended.
func (h *host) passed(t testing.TB, flow Flow) (Passed, bool) {
	t.Helper()
	state, err := h.Look(flow)
	if err != nil {
		t.Fatal(err)
	}
	return state.Passed, state.Ended
}

// skBuff is the kernel's struct __sk_buff, as far as a test run takes it.
type skBuff struct {
	_       [10]uint32
	IfIndex uint32
	_       [33]uint32
	GSOSize uint32
	_       [3]uint32
}

const (
	goesUp   = -1
	isSentOn = 7 // TC_ACT_REDIRECT
	isGone   = 2 // TC_ACT_SHOT
)

// run has the kernel run the filter's program over a frame that came in.
func (h *host) run(t testing.TB, frame []byte, gsoSize uint32) (verdict int32, after []byte) {
	t.Helper()
	in := skBuff{IfIndex: uint32(h.index), GSOSize: gsoSize}
	var out skBuff
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64), Context: &in, ContextOut: &out}
	h.ns.Must(t, func() error {
		got, err := h.objects.Forward.Run(options)
		verdict = int32(got)
		return err
	})
	return verdict, options.DataOut
}

// check wants a packet to be forwarded as out, or to go up as it came.
func (h *host) check(t testing.TB, name string, p sample, gsoSize uint32, out *Tuple) {
	t.Helper()
	frame := p.frame()
	want, wantAfter := int32(goesUp), frame
	if out != nil {
		want, wantAfter = isSentOn, p.forwarded(*out).frame()
	}
	verdict, after := h.run(t, frame, gsoSize)
	if verdict != want || !bytes.Equal(after, wantAfter) {
		t.Errorf("%s: verdict %d, want %d\nframe %x\nafter %x\nwant  %x", name, verdict, want, frame, after, wantAfter)
	}
}

var (
	flow4 = Flow{
		Origin: Tuple{netip.MustParseAddrPort("10.1.0.1:40000"), netip.MustParseAddrPort("10.1.0.2:443")},
		Reply:  Tuple{netip.MustParseAddrPort("9.0.3.1:8443"), netip.MustParseAddrPort("10.2.0.2:61000")},
	}
	flow6 = Flow{
		Origin: Tuple{netip.MustParseAddrPort("[fd01::1]:40000"), netip.MustParseAddrPort("[fd01::2]:443")},
		Reply:  Tuple{netip.MustParseAddrPort("[2001:db8::1]:8443"), netip.MustParseAddrPort("[fd02::2]:61000")},
	}
)

func (h *host) packet(tuple Tuple) sample {
	return sample{tuple: tuple, ttl: 64, tos: 0xb9, flow: 0x12345, flags: packet.ACK | packet.PSH, seq: 7, payload: []byte("some odd data"), to: h.mac}
}

func TestForwardsBothWays(t *testing.T) {
	h := newHost(t)
	for name, flow := range map[string]Flow{"IPv4": flow4, "IPv6": flow6} {
		origin, reply := flow.Reply.reversed(), flow.Origin.reversed()
		h.check(t, name+", not known", h.packet(flow.Origin), 0, nil)
		h.add(t, flow)
		p := h.packet(flow.Origin)
		h.check(t, name, p, 0, &origin)
		h.check(t, name+" back", h.packet(flow.Reply), 0, &reply)
		h.check(t, name+" the wrong way round", h.packet(flow.Reply.reversed()), 0, nil)
		size := uint64(len(p.frame()) - 14)
		if got, over := h.passed(t, flow); over || got != (Passed{size, size}) {
			t.Errorf("%s: %+v, ended %v, want %d bytes each way", name, got, over, size)
		}
		if got, err := h.Remove(flow); err != nil || got != (Passed{size, size}) {
			t.Errorf("%s: removed %+v, %v", name, got, err)
		}
		h.check(t, name+", removed", p, 0, nil)
		if got, err := h.Remove(flow); err != nil || got != (Passed{}) {
			t.Errorf("%s: removed again %+v, %v", name, got, err)
		}
	}
}

// What is not simple goes up as it came, and is not counted.
func TestGoesUp(t *testing.T) {
	h := newHost(t)
	h.add(t, flow4)
	h.add(t, flow6)
	to := func(server string) Flow {
		f := flow4
		f.Origin.Src = netip.AddrPortFrom(f.Origin.Src.Addr(), f.Origin.Src.Port()+uint16(len(server)))
		f.Reply.Src = netip.MustParseAddrPort(server)
		h.add(t, f)
		return f
	}
	big, fits := make([]byte, 1449), make([]byte, 1448)
	for _, c := range []struct {
		name   string
		flow   Flow
		gso    uint32
		change func(*sample)
		passes bool
	}{
		{"no data", flow4, 0, func(p *sample) { p.payload = nil }, true},
		{"congestion experienced", flow4, 0, func(p *sample) { p.tos |= 3 }, true},
		{"congestion experienced", flow6, 0, func(p *sample) { p.tos |= 3 }, true},
		{"as large as fits", flow4, 0, func(p *sample) { p.payload = fits }, true},
		{"as large as fits", flow6, 0, func(p *sample) { p.payload = fits[:1428] }, true},
		{"in pieces that fit", flow4, 1448, func(p *sample) { p.payload = make([]byte, 2896) }, true},
		{"in pieces that fit", flow6, 1428, func(p *sample) { p.payload = make([]byte, 2856) }, true},

		{"too large", flow4, 0, func(p *sample) { p.payload = big }, false},
		{"too large", flow6, 0, func(p *sample) { p.payload = big[:1429] }, false},
		{"in pieces that are too large", flow4, 1449, func(p *sample) { p.payload = make([]byte, 2896) }, false},
		{"in pieces that are too large", flow6, 1429, func(p *sample) { p.payload = make([]byte, 2856) }, false},
		{"too large for the route", to("10.7.0.1:44"), 0, func(p *sample) { p.payload = fits }, false},
		{"no route", to("10.8.0.1:443"), 0, nil, false},
		{"no neighbour", to("10.9.0.1:8443"), 0, nil, false},
		{"last hop", flow4, 0, func(p *sample) { p.ttl = 1 }, false},
		{"last hop", flow6, 0, func(p *sample) { p.ttl = 1 }, false},
		{"no hop", flow4, 0, func(p *sample) { p.ttl = 0 }, false},
		{"UDP", flow4, 0, func(p *sample) { p.protocol = 17 }, false},
		{"UDP", flow6, 0, func(p *sample) { p.protocol = 17 }, false},
		{"IP options", flow4, 0, func(p *sample) { p.ipOptions = []byte{148, 4, 0, 0} }, false},
		{"an extension header", flow6, 0, func(p *sample) { p.ipOptions = []byte{6, 0, 1, 4, 0, 0, 0, 0} }, false},
		{"first fragment", flow4, 0, func(p *sample) { p.fragment = 0x2000 }, false},
		{"later fragment", flow4, 0, func(p *sample) { p.fragment = 10 }, false},
		{"VLAN", flow4, 0, func(p *sample) { p.vlan = true }, false},
		{"to another host of the link", flow4, 0, func(p *sample) { p.to = [6]byte{2, 1, 1, 1, 1, 1} }, false},
		{"to all of the link", flow4, 0, func(p *sample) { p.to = [6]byte{255, 255, 255, 255, 255, 255} }, false},
		{"a trailer", flow4, 0, func(p *sample) { p.trailer = make([]byte, 4) }, false},
		{"a trailer", flow6, 0, func(p *sample) { p.trailer = make([]byte, 4) }, false},
		{"cut off in the data", flow4, 0, func(p *sample) { p.truncateTo = 70 }, false},
		{"cut off in the TCP header", flow4, 0, func(p *sample) { p.truncateTo = 14 + 20 + 19 }, false},
		{"cut off in the TCP header", flow6, 0, func(p *sample) { p.truncateTo = 14 + 40 + 19 }, false},
		{"TCP header too short", flow4, 0, func(p *sample) { p.offset = 4 }, false},
		{"TCP header beyond the packet", flow4, 0, func(p *sample) { p.offset = 15; p.payload = nil }, false},
		{"from another port", flow4, 0, func(p *sample) { p.tuple.Src = netip.AddrPortFrom(p.tuple.Src.Addr(), 1) }, false},
		{"from another address", flow6, 0, func(p *sample) { p.tuple.Src = netip.MustParseAddrPort("[fd01::3]:40000") }, false},
	} {
		p := h.packet(c.flow.Origin)
		if c.change != nil {
			c.change(&p)
		}
		before, _ := h.passed(t, c.flow)
		var out *Tuple
		if c.passes {
			reversed := c.flow.Reply.reversed()
			out = &reversed
		}
		h.check(t, c.name, p, c.gso, out)
		if after, over := h.passed(t, c.flow); (after != before) != c.passes || over {
			t.Errorf("%s: before %+v, after %+v, ended %v", c.name, before, after, over)
		}
	}
}

func TestForwardingSwitchedOff(t *testing.T) {
	h := newHost(t)
	h.add(t, flow4)
	h.ns.Output(t, "sysctl", "-qw", "net.ipv4.ip_forward=0")
	h.check(t, "not a router", h.packet(flow4.Origin), 0, nil)
}

// Whatever the addresses, ports and data: what leaves is what a translating router
// would send, with its checksums.
func TestAnyPacket(t *testing.T) {
	h := newHost(t)
	rapid.Check(t, func(r *rapid.T) {
		four := rapid.Bool().Draw(r, "IPv4")
		address := func(name string) netip.AddrPort {
			port := rapid.Uint16().Draw(r, name+" port")
			if four {
				a := [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(r, name))
				a[0] = 20 + a[0]%80 // routed by default
				return netip.AddrPortFrom(netip.AddrFrom4(a), port)
			}
			a := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(r, name))
			a[0] = 0x20 | a[0]&0xf
			return netip.AddrPortFrom(netip.AddrFrom16(a), port)
		}
		flow := Flow{Tuple{address("client"), address("waypoint")}, Tuple{address("server"), address("egress")}}
		if flow.Origin == flow.Reply {
			return
		}
		h.add(t, flow)
		p := h.packet(flow.Origin)
		p.ttl = rapid.ByteRange(2, 255).Draw(r, "TTL")
		p.tos = rapid.Byte().Draw(r, "TOS")
		p.flow = rapid.Uint32Range(0, 1<<20-1).Draw(r, "flow label")
		p.seq = rapid.Uint32().Draw(r, "sequence number")
		p.payload = rapid.SliceOfN(rapid.Byte(), 0, 1400).Draw(r, "data")
		out := flow.Reply.reversed()
		h.check(t, "packet", p, 0, &out)
		if _, err := h.Remove(flow); err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			r.FailNow()
		}
	})
}

func TestWatchTwiceAndMixed(t *testing.T) {
	h := newHost(t)
	for _, passed := range []Passed{{100, 200}, {1, 2}} {
		if err := h.Watch(flow4, passed); err != nil {
			t.Fatal(err)
		}
	}
	if got, over := h.passed(t, flow4); over || got != (Passed{100, 200}) {
		t.Errorf("%+v, ended %v", got, over)
	}
	if err := h.Watch(Flow{flow4.Origin, flow6.Reply}, Passed{}); err == nil {
		t.Error("from one family to the other")
	}
	if got, err := h.Look(flow6); err != nil || got != (State{}) {
		t.Errorf("not there: %+v, %v", got, err)
	}
	if err := h.Forward(flow4); err == nil {
		t.Error("forwarded without a packet")
	}
}

func TestFull(t *testing.T) {
	if testing.Short() {
		t.Skip("fills the map")
	}
	h := newHost(t)
	nth := func(i int) Flow {
		f := flow4
		a := netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)})
		f.Origin.Src, f.Reply.Src = netip.AddrPortFrom(a, 1), netip.AddrPortFrom(a, 2)
		return f
	}
	for i := range MaxFlows {
		if err := h.Watch(nth(i), Passed{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Watch(nth(MaxFlows), Passed{}); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if _, err := h.Remove(nth(0)); err != nil {
		t.Fatal(err)
	}
	h.add(t, nth(MaxFlows))
}

// Frames of interfaces that are parts of others, and without Ethernet headers, are
// not looked at.
func TestAttach(t *testing.T) {
	h := newHost(t)
	h.ns.Output(t, "ip", "link", "add", "bridge", "type", "bridge")
	h.ns.Output(t, "ip", "link", "set", "out", "master", "bridge")
	h.ns.Output(t, "ip", "tuntap", "add", "tun0", "mode", "tun")
	var all []int
	h.ns.Must(t, func() error {
		list, err := net.Interfaces()
		for _, i := range list {
			all = append(all, i.Index)
		}
		return err
	})
	for range 2 {
		if err := h.Attach(append(all, 4711)); err != nil {
			t.Fatal(err)
		}
	}
	checkFilters(t, h.ns, "bridge clsact", "bridge ingress dcol-forward+qdisc", "in clsact", "in ingress dcol-forward+qdisc")
	if err := h.Attach([]int{h.index}); err != nil {
		t.Fatal(err)
	}
	checkFilters(t, h.ns, "in clsact", "in ingress dcol-forward+qdisc")
	for range 2 {
		h.ns.Must(t, CleanUp)
		checkFilters(t, h.ns)
	}
}

func TestRights(t *testing.T) {
	t.Run("two are enough", func(t *testing.T) {
		netnstest.New(t).Must(t, func() error {
			if err := netnstest.LimitRights(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
				return err
			}
			for range 2 { // the second finds what the first left, and may not read it
				f, err := Open()
				if err != nil {
					return err
				}
				if err := errors.Join(f.Attach([]int{1}), f.Watch(flow4, Passed{}), f.Watch(flow6, Passed{}), f.Close()); err != nil {
					return err
				}
			}
			return CleanUp()
		})
	})
	t.Run("one is named", func(t *testing.T) {
		netnstest.New(t).Must(t, func() error {
			if err := netnstest.LimitRights(unix.CAP_NET_ADMIN); err != nil {
				return err
			}
			_, err := Open()
			var unavailable *UnavailableError
			if !errors.As(err, &unavailable) || unavailable.Fix != "give the agent CAP_BPF" {
				t.Errorf("%v", err)
			}
			return nil
		})
	})
}
