package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/kernel/bpf/balance"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Amount of work for the forwarding rate of routers.
const (
	routedRepetitions = 15
	routedFrames      = 50000
	routedFlows       = 1000
	routedHops        = 4
)

// routerHost forwards over several links to the server.
const routerHost = "router"

// forwardingRate compares how many packets a core forwards in a second with the kernel's own choice of next hops and
// with CFLB (figure 5.11). It uses the sender's processor time, which includes all work except that of the next hops,
// which drop the packets.
func forwardingRate(ctx context.Context, o Options) (found []Measurement, err error) {
	spec := testbed.Spec{
		Hosts: []testbed.HostSpec{{Name: clientHost}, {Name: routerHost, Forward: true}, {Name: serverHost}},
		Links: []testbed.LinkSpec{{Name: "near", A: clientHost, B: routerHost}}, Seed: 1, Backend: testbed.BackendVeth,
	}
	for i := range routedHops {
		spec.Links = append(spec.Links, testbed.LinkSpec{Name: fmt.Sprint("far", i), A: routerHost, B: serverHost})
	}
	n, err := testbed.Build(ctx, spec, o.Log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	frames, fd, err := prepareRouted(ctx, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	kinds := []cflb.Cipher{"", cflb.Speck, cflb.RC5, cflb.Skip32}
	rates := make([][]float64, len(kinds))
	err = inTurns(routedRepetitions, len(kinds), func(_, i int) (err error) {
		if kinds[i] != "" {
			b, err := openBalancer(n, kinds[i], []uint8{0, 1, 2, 3})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, b.Close()) }()
		}
		v, err := sendFrames(fd, frames)
		rates[i] = append(rates[i], 1/v.each(v.cpu)*1e6)
		return errors.Join(err, context.Cause(ctx))
	})
	if err != nil {
		return nil, err
	}
	baseline := of("cflb forwarding rate, the kernel's own choice", "packets/s", rates[0])
	found = append(found, baseline)
	published := map[cflb.Cipher]string{cflb.Speck: "", cflb.RC5: "; published: 98 %", cflb.Skip32: "; published: 88 %"}
	for i, kind := range kinds[1:] {
		m := of(fmt.Sprintf("cflb forwarding rate, %s", kind), "packets/s", rates[i+1]).against(baseline.Value)
		if kind == cflb.Speck {
			m = m.target("≥ 0.95 of the kernel's", *m.Ratio >= 0.95)
		}
		m.Note = fmt.Sprintf("TCP packets of 64 bytes of %d flows over %d next hops, one core: a sender's own time and the router's, so ratios are nearer to 1 than the router's own%s", routedFlows, routedHops, published[kind])
		found = append(found, m)
	}
	return found, nil
}

// routedTo is a network reached over all links. The next hops drop its packets.
var routedTo = netip.MustParsePrefix("198.18.0.0/15")

// prepareRouted sets the routes. It returns frames of many flows and the socket that sends them.
func prepareRouted(ctx context.Context, n *testbed.Network) (frames [][]byte, fd int, err error) {
	s := &network{Crew: crew.Crew{Network: n}}
	add := []string{"ip", "route", "add", routedTo.String()}
	for i := range routedHops {
		gateway, _ := n.Host(serverHost).AddrOn(fmt.Sprint("far", i))
		add = append(add, "nexthop", "via", gateway.String())
	}
	for _, argv := range [][]string{add, {"sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1"}} {
		if _, err := s.Run(ctx, routerHost, argv...); err != nil {
			return nil, -1, err
		}
	}
	if err := n.Host(serverHost).Nft(ctx, "table ip deaf {\n\tchain prerouting {\n\t\ttype filter hook prerouting priority raw\n\t\tip daddr "+routedTo.String()+" drop\n\t}\n}"); err != nil {
		return nil, -1, err
	}
	from, err := s.hardwareAddr(clientHost, "near")
	if err != nil {
		return nil, -1, err
	}
	to, err := s.hardwareAddr(routerHost, "near")
	if err != nil {
		return nil, -1, err
	}
	random := rand.New(rand.NewPCG(1, 511))
	src, _ := n.Host(clientHost).AddrOn("near")
	var flows [][]byte
	for range routedFlows {
		dst := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(random.Uint32()), byte(random.Uint32())}), 443)
		p := packet.Segment(netip.AddrPortFrom(src, uint16(32768+random.IntN(28232))), dst, packet.TCP{Flags: packet.ACK}, make([]byte, 10))
		if err := p.Seal(); err != nil {
			return nil, -1, err
		}
		frame := append(append(append([]byte{}, to...), from...), 8, 0)
		flows = append(flows, p.Append(frame))
	}
	for i := range routedFrames {
		frames = append(frames, flows[i%len(flows)])
	}
	fd, err = s.openPacketSocket("near")
	return frames, fd, err
}

// openBalancer makes the router choose next hops by CFLB. slots has the index of each next hop among the kernel's.
func openBalancer(n *testbed.Network, c cflb.Cipher, slots []uint8) (*balance.Balancer, error) {
	s, err := schemeOf(16, c)
	if err != nil {
		return nil, err
	}
	k, _ := s.Constants()
	ciphers := map[cflb.Cipher]balance.Cipher{cflb.Speck: balance.Speck, cflb.Skip32: balance.Skip32, cflb.RC5: balance.RC5}
	link, err := n.Host(routerHost).Link("near")
	if err != nil {
		return nil, err
	}
	var b *balance.Balancer
	err = inNetwork(n.Host(routerHost), func() (err error) {
		b, err = balance.Open(balance.Function{Cipher: ciphers[c], Keys: k.Keys, Table: k.Table, Radix: k.Radix, Powers: k.Powers, Router: 1})
		if err != nil {
			return err
		}
		return errors.Join(b.Attach([]int{link.Attrs().Index}), b.Set([]balance.Route{{Prefix: routedTo, Slots: slots}}))
	})
	if err != nil && b != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, err
}

// inNetwork runs fn in a host's network namespace and in no other namespace of the host, because loading a program uses
// /proc/self, which the host's thread lacks.
func inNetwork(h *testbed.Host, fn func() error) error {
	namespace, err := testbed.On(h, func() (int, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		defer unix.Close(fd)
		return unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	})
	if err != nil {
		return fmt.Errorf("find the network namespace of %s: %w", h.Name(), err)
	}
	defer unix.Close(namespace)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends in that namespace
		err := unix.Setns(namespace, unix.CLONE_NEWNET)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}
