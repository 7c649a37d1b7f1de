package balance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cflb/cflbtest"
	"github.com/detour-collective/dcol/internal/kernel/bpf/tcfilter/tcfiltertest"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

const routerID = 7

func functionOf(t testing.TB, s *cflb.Scheme) Function {
	t.Helper()
	c, ok := s.Constants()
	if !ok {
		t.Fatal("the scheme has no constants")
	}
	ciphers := map[cflb.Cipher]Cipher{cflb.Speck: Speck, cflb.Skip32: Skip32, cflb.RC5: RC5}
	return Function{Cipher: ciphers[c.Cipher], Keys: c.Keys, Table: c.Table, Radix: c.Radix, Powers: c.Powers, Router: routerID}
}

func newBalancer(t testing.TB, f Function) *Balancer {
	t.Helper()
	var b *Balancer
	netnstest.New(t).Must(t, func() (err error) {
		b, err = Open(f)
		return err
	})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// slotsOf returns the slots of a route whose next hops are numbered from the kernel's last to its first.
func slotsOf(count int) (slots []uint8) {
	for i := range count {
		slots = append(slots, uint8(count-1-i))
	}
	return slots
}

const (
	contextWords = 48 // of struct __sk_buff
	hashAt       = 12 // of its member cb
)

// run has the kernel run a program over a packet, and returns the hash that it set; 0: none.
func run(t testing.TB, p *ebpf.Program, built *packet.Packet) uint32 {
	t.Helper()
	etherType := []byte{0x86, 0xdd}
	if built.V4 != nil {
		etherType = []byte{8, 0}
	}
	if err := built.Seal(); err != nil {
		t.Fatal(err)
	}
	return runFrame(t, p, slices.Concat(make([]byte, 12), etherType, built.Bytes()))
}

func runFrame(t testing.TB, p *ebpf.Program, frame []byte) uint32 {
	t.Helper()
	var in, out [contextWords]uint32
	verdict, err := p.Run(&ebpf.RunOptions{Data: frame, Context: in, ContextOut: &out})
	if err != nil {
		t.Fatal(err)
	}
	if int32(verdict) != -1 {
		t.Fatalf("verdict %d: the program must leave all packets to the kernel", int32(verdict))
	}
	return out[hashAt]
}

// kernelSlot returns the place of the next hop that the kernel takes for a hash (fib_rebalance in net/ipv4/fib_semantics.c).
func kernelSlot(hash uint32, count int) int {
	for i := range count {
		total := uint64(count)
		if bound := (uint64(i+1)<<31 + total/2) / total; uint64(hash>>1) <= bound-1 {
			return i
		}
	}
	return -1
}

func addr(t *rapid.T, label string, six bool) netip.Addr {
	if six {
		b := [16]byte{0xfd, 1}
		copy(b[2:], rapid.SliceOfN(rapid.Byte(), 14, 14).Draw(t, label))
		return netip.AddrFrom16(b)
	}
	b := [4]byte{10}
	copy(b[1:], rapid.SliceOfN(rapid.Byte(), 3, 3).Draw(t, label))
	return netip.AddrFrom4(b)
}

// TestChoice compares the program's next hop with that of the scheme in Go, for any flow and time to live.
func TestChoice(t *testing.T) {
	for _, c := range []cflb.Cipher{cflb.Speck, cflb.RC5, cflb.Skip32} {
		for _, radix := range []int{2, 3, 7, 64, 256} {
			t.Run(fmt.Sprint(c, " ", radix), func(t *testing.T) {
				tt := t
				scheme := cflbtest.Scheme(t, c, radix)
				b := newBalancer(t, functionOf(t, scheme))
				router := cflb.Router{Scheme: scheme, ID: routerID}
				hops := map[bool]int{}
				rapid.Check(t, func(t *rapid.T) {
					six := rapid.Bool().Draw(t, "IPv6")
					if n := rapid.IntRange(2, min(radix+3, MaxHops)).Draw(t, "next hops"); n != hops[six] || hops[six] == 0 {
						hops[six] = n
						if err := b.Set([]Route{{netip.MustParsePrefix("0.0.0.0/0"), slotsOf(max(hops[false], 2))}, {netip.MustParsePrefix("fd01::/16"), slotsOf(max(hops[true], 2))}}); err != nil {
							t.Fatal(err)
						}
					}
					src, dst := addr(t, "source", six), addr(t, "destination", six)
					ports := [2]uint16{rapid.Uint16().Draw(t, "source port"), rapid.Uint16().Draw(t, "destination port")}
					ttl := rapid.Uint8Range(1, 255).Draw(t, "ttl")
					p := packet.Segment(netip.AddrPortFrom(src, ports[0]), netip.AddrPortFrom(dst, ports[1]), packet.TCP{Flags: packet.ACK}, nil)
					if six {
						p.V6.HopLimit = ttl
					} else {
						p.V4.TTL = ttl
					}
					want := router.Next(cflb.OfPorts(ports[0], ports[1]), cflb.Flow(src, dst, 6), ttl, hops[six])
					for _, program := range []*ebpf.Program{b.objects.Enter, b.objects.Balance} {
						hash := run(tt, program, p)
						if hash == 0 {
							t.Fatal("the program set no hash")
						}
						if got := hops[six] - 1 - kernelSlot(hash, hops[six]); got != want {
							t.Fatalf("next hop %d of %d, want %d", got, hops[six], want)
						}
					}
				})
			})
		}
	}
}

// TestBuckets has every next hop of every number of them in the kernel's part of the hashes, at both ends of it.
func TestBuckets(t *testing.T) {
	for count := 2; count <= MaxHops; count++ {
		hops := hopsOf(slotsOf(count))
		for number, slot := range slotsOf(count) {
			for _, hash := range []uint32{hops.Lowest[number], hops.Lowest[number] + hops.Span} {
				if got := kernelSlot(hash, count); got != int(slot) {
					t.Errorf("%d of %d with %#x: the kernel takes %d", slot, count, hash, got)
				}
			}
		}
	}
}

var (
	client4 = netip.MustParseAddrPort("10.0.0.1:40000")
	server4 = netip.MustParseAddrPort("10.2.0.1:443")
	client6 = netip.MustParseAddrPort("[fd01::1]:40000")
	server6 = netip.MustParseAddrPort("[fd01::2]:443")
)

// TestLeftToTheKernel has packets and routes that the program leaves alone.
func TestLeftToTheKernel(t *testing.T) {
	b := newBalancer(t, functionOf(t, cflbtest.Scheme(t, cflb.Speck, 4)))
	routes := []Route{
		{netip.MustParsePrefix("10.2.0.0/16"), slotsOf(2)}, {netip.MustParsePrefix("fd01::/16"), slotsOf(2)},
		{netip.MustParsePrefix("10.3.0.0/16"), slotsOf(1)}, {netip.MustParsePrefix("10.4.0.0/16"), slotsOf(MaxHops + 1)},
	}
	if err := b.Set(routes); err != nil {
		t.Fatal(err)
	}
	segment := func(src, dst netip.AddrPort, change func(*packet.Packet)) *packet.Packet {
		p := packet.Segment(src, dst, packet.TCP{Flags: packet.ACK}, make([]byte, 64))
		if change != nil {
			change(p)
		}
		return p
	}
	if run(t, b.objects.Enter, segment(client4, server4, nil)) == 0 || run(t, b.objects.Enter, segment(client6, server6, nil)) == 0 {
		t.Error("the program chooses for no segment")
	}
	to := netip.MustParseAddrPort
	for name, p := range map[string]*packet.Packet{
		"no route":           segment(client4, to("10.9.0.1:443"), nil),
		"a single next hop":  segment(client4, to("10.3.0.1:443"), nil),
		"too many next hops": segment(client4, to("10.4.0.1:443"), nil),
		"IPv6 without route": segment(client6, to("[fd02::1]:443"), nil),
		"a first fragment":   segment(client4, server4, func(p *packet.Packet) { p.V4.Fragment = 0x2000 }),
		"a later fragment":   segment(client4, server4, func(p *packet.Packet) { p.V4.Fragment = 8 }),
	} {
		if hash := run(t, b.objects.Enter, p); hash != 0 {
			t.Errorf("%s: the program set %#x", name, hash)
		}
	}
	short := slices.Concat(make([]byte, 12), []byte{8, 0}, []byte{0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 2, 0, 1})
	if hash := runFrame(t, b.objects.Enter, short); hash != 0 {
		t.Errorf("a packet that ends before its ports: %#x", hash)
	}
	icmp := slices.Clone(short)
	icmp[23] = 1
	if hash := runFrame(t, b.objects.Enter, append(icmp, make([]byte, 20)...)); hash != 0 {
		t.Errorf("ICMP: %#x", hash)
	}
	options := segment(client4, server4, nil)
	if err := options.Seal(); err != nil {
		t.Fatal(err)
	}
	raw := options.Bytes()
	with := slices.Concat(make([]byte, 12), []byte{8, 0}, raw[:20], []byte{1, 1, 1, 1}, raw[20:])
	with[14] = 0x46
	binary.BigEndian.PutUint16(with[16:], uint16(len(raw)+4))
	if hash := runFrame(t, b.objects.Enter, with); hash != run(t, b.objects.Enter, options) {
		t.Error("IP options change the choice")
	}
}

// TestRoutesChange replaces routes: the most specific one counts, and a removed one is left to the kernel.
func TestRoutesChange(t *testing.T) {
	b := newBalancer(t, functionOf(t, cflbtest.Scheme(t, cflb.Speck, 4)))
	p := packet.Segment(client4, server4, packet.TCP{Flags: packet.ACK}, nil)
	slotWith := func(count int, routes ...Route) int {
		t.Helper()
		if err := b.Set(routes); err != nil {
			t.Fatal(err)
		}
		hash := run(t, b.objects.Enter, p)
		if hash == 0 {
			return -1
		}
		return kernelSlot(hash, count)
	}
	all, network := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.2.0.0/16")
	straight, turned := []uint8{0, 1}, []uint8{1, 0}
	first := slotWith(2, Route{all, straight})
	if got := slotWith(2, Route{all, straight}, Route{network, turned}); got != 1-first {
		t.Errorf("with a more specific route: slot %d, want %d", got, 1-first)
	}
	if got := slotWith(2, Route{all, straight}); got != first {
		t.Errorf("without it: slot %d, want %d", got, first)
	}
	if got := slotWith(2, Route{all, turned}); got != 1-first {
		t.Errorf("renumbered: slot %d, want %d", got, 1-first)
	}
	for _, left := range [][]uint8{nil, {0}, slotsOf(MaxHops + 1)} {
		if got := slotWith(2, Route{all, straight}, Route{network, left}); got != -1 {
			t.Errorf("with a more specific route of %d next hops: slot %d, but it is left to the kernel", len(left), got)
		}
	}
	if got := slotWith(2, Route{all, straight}); got != first {
		t.Errorf("without that: slot %d, want %d", got, first)
	}
	if got := slotWith(2); got != -1 {
		t.Errorf("without routes: slot %d", got)
	}
}

// attachedTo returns the number of TCX programs at an interface's ingress in the thread's network namespace.
func attachedTo(t *testing.T, index int) int {
	t.Helper()
	found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		t.Fatal(err)
	}
	return len(found.Programs)
}

// TestLinks attaches the program by TCX, to new interfaces too, and detaches it. A filter that an older version left is
// removed.
func TestLinks(t *testing.T) {
	f := functionOf(t, cflbtest.Scheme(t, cflb.Speck, 2))
	ns := netnstest.New(t)
	ns.Must(t, func() error {
		before := tcfiltertest.Describe(t)
		old, err := Open(f)
		if err != nil {
			return err
		}
		old.filtered = true
		if err := old.Attach([]int{1}); err != nil {
			return err
		}
		b, err := Open(f)
		if err != nil {
			return err
		}
		defer b.Close()
		if after := tcfiltertest.Describe(t); after != before {
			t.Errorf("the filter of a process before is left: %s", after)
		}
		if err := errors.Join(old.Close(), b.Attach([]int{1, 4711})); err != nil {
			return err
		}
		if b.filtered {
			t.Skip("this kernel has no TCX")
		}
		if n := attachedTo(t, 1); n != 1 {
			t.Errorf("%d programs are attached", n)
		}
		const index = 77
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a", Index: index}, PeerName: "b"}
		for range 2 { // the second time, another interface has the index
			if err := errors.Join(netlink.LinkAdd(pair), b.Attach([]int{1, index})); err != nil {
				return err
			}
			if one, two := attachedTo(t, 1), attachedTo(t, index); one != 1 || two != 1 {
				t.Errorf("%d and %d programs are attached", one, two)
			}
			if err := netlink.LinkDel(pair); err != nil {
				return err
			}
		}
		if err := b.Attach(nil); err != nil {
			return err
		}
		if n := attachedTo(t, 1); n != 0 {
			t.Errorf("%d programs are left", n)
		}
		return nil
	})
}

// TestEndsWithTheProcess removes what a process leaves that was killed: its filter chooses nothing, and CleanUp removes it.
// TCX leaves nothing.
func TestEndsWithTheProcess(t *testing.T) {
	f := functionOf(t, cflbtest.Scheme(t, cflb.Speck, 2))
	for _, filtered := range []bool{false, true} {
		t.Run(fmt.Sprint("filter ", filtered), func(t *testing.T) {
			netnstest.New(t).Must(t, func() error { return killed(t, f, filtered) })
		})
	}
}

func killed(t *testing.T, f Function, filtered bool) error {
	before := tcfiltertest.Describe(t)
	b, err := Open(f)
	if err != nil {
		return err
	}
	b.filtered = filtered
	if err := b.Attach([]int{1}); err != nil {
		return err
	}
	if err := b.Set([]Route{{netip.MustParsePrefix("10.2.0.0/16"), slotsOf(2)}}); err != nil {
		return err
	}
	p := packet.Segment(client4, server4, packet.TCP{Flags: packet.ACK}, nil)
	if run(t, b.objects.Enter, p) == 0 {
		t.Error("the program chooses nothing")
	}
	enter, err := b.objects.Enter.Clone()
	if err != nil {
		return err
	}
	defer enter.Close()
	b.filter.Handle.Close() // as the kernel does when the process ends
	if err := errors.Join(b.links.Set(nil), b.objects.Close()); err != nil {
		return err
	}
	for end := time.Now().Add(20 * time.Second); run(t, enter, p) != 0; time.Sleep(time.Millisecond) { // the kernel empties the map later
		if time.Now().After(end) {
			t.Fatal("without its process the filter still chooses")
		}
	}
	if left := tcfiltertest.Describe(t) != before; left != b.filtered {
		t.Errorf("a filter is left: %v", left)
	}
	if err := CleanUp(); err != nil {
		return err
	}
	if after := tcfiltertest.Describe(t); after != before {
		t.Errorf("left behind: %s", after)
	}
	return nil
}

func TestBadFunction(t *testing.T) {
	for name, f := range map[string]Function{
		"no radix":     {Powers: []uint32{1}},
		"no positions": {Radix: 2},
		"many keys":    {Radix: 2, Powers: []uint32{1}, Keys: make([]uint16, maxKeys+1)},
	} {
		if _, err := Open(f); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestFewRights has the program accepted with the rights of the packaged service: the verifier is stricter without
// CAP_PERFMON.
func TestFewRights(t *testing.T) {
	for _, c := range []cflb.Cipher{cflb.Speck, cflb.RC5, cflb.Skip32} {
		for _, radix := range []int{3, 4, 256} {
			f := functionOf(t, cflbtest.Scheme(t, c, radix))
			failed := make(chan error)
			go func() {
				runtime.LockOSThread() // for good: the thread ends without its rights
				failed <- func() error {
					if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
						return err
					}
					few := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_ADMIN}, {Effective: 1 << (unix.CAP_BPF - 32)}}
					few[0].Permitted, few[1].Permitted = few[0].Effective, few[1].Effective
					if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &few[0]); err != nil {
						return err
					}
					b, err := Open(f)
					if err != nil {
						return err
					}
					return errors.Join(b.Attach([]int{1}), b.Close())
				}()
			}()
			if err := <-failed; err != nil {
				t.Errorf("%v with radix %d: %v", c, radix, err)
			}
		}
	}
}
