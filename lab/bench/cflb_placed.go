package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/kernel/bpf/balance"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/testbed"
)

// placed is a network in which a router has seven next hops towards a server. It opens MPTCP connections whose subflows
// have chosen ports.
type placed struct {
	*network
	kernel   *mptcp.Namespace
	events   chan mptcp.Event
	from     netip.Addr
	balancer *balance.Balancer
	scheme   *cflb.Scheme
	random   *rand.Rand
	received atomic.Int64
}

// onPlaced builds a network and measures on it. With direct, the last next hop is the server itself.
func onPlaced(ctx context.Context, o Options, direct bool, measure func(context.Context, *placed) ([]Measurement, error)) (found []Measurement, err error) {
	spec := testbed.Spec{
		Hosts: []testbed.HostSpec{{Name: clientHost}, {Name: routerHost, Forward: true}, {Name: secondRouter, Forward: true}, {Name: serverHost}},
		Links: []testbed.LinkSpec{{Name: "near", A: clientHost, B: routerHost}, {Name: "far", A: secondRouter, B: serverHost}},
		Seed:  1, Backend: testbed.BackendVeth,
	}
	for i := range subflowLinks {
		l := testbed.LinkSpec{Name: fmt.Sprint("m", i), A: routerHost, B: secondRouter}
		if direct && i == subflowLinks-1 {
			l.B = serverHost
		}
		spec.Links = append(spec.Links, l)
	}
	if direct {
		spec.Backend = testbed.BackendEmulator
		spec.Links[1].AtoB.Rate, spec.Links[1+subflowLinks].AtoB.Rate = subflowRate, subflowRate
	}
	s, err := openNetwork(ctx, o, spec, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := &placed{network: s, events: make(chan mptcp.Event, 1024), random: rand.New(rand.NewPCG(1, 513))}
	if err := p.prepare(ctx, direct); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.balancer.Close()) }()
	limited, stop := context.WithCancel(ctx)
	listening := make(chan error, 1)
	go func() { listening <- p.kernel.Listen(limited, p.events) }()
	end, err := p.serve()
	if err == nil {
		found, err = measure(ctx, p)
		err = errors.Join(err, end())
	}
	stop()
	return found, errors.Join(err, <-listening, p.kernel.Close())
}

// prepare sets addresses, routes and limits, and makes the first router choose by ports.
func (p *placed) prepare(ctx context.Context, direct bool) (err error) {
	add := []string{"ip", "route", "add", routedTo.String()}
	for i := range subflowLinks {
		peer := secondRouter
		if direct && i == subflowLinks-1 {
			peer = serverHost
		}
		gateway, _ := p.Host(peer).AddrOn(fmt.Sprint("m", i))
		add = append(add, "nexthop", "via", gateway.String())
	}
	far, _ := p.Host(serverHost).AddrOn("far")
	for _, x := range []struct {
		host string
		argv []string
	}{
		{serverHost, []string{"ip", "addr", "add", subflowServer.Addr().String() + "/32", "dev", "lo"}},
		{serverHost, []string{"ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "0"}},
		{secondRouter, []string{"ip", "route", "add", routedTo.String(), "via", far.String()}},
		{routerHost, add},
		{routerHost, []string{"sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1"}},
		{clientHost, []string{"sysctl", "-qw", "net.mptcp.pm_type=1"}},
	} {
		if _, err := p.Run(ctx, x.host, x.argv...); err != nil {
			return err
		}
	}
	if err := p.Host(secondRouter).Nft(ctx, "table ip seen {\n\tset links { type ifname . inet_service; size 65535; flags dynamic; }\n"+
		"\tchain prerouting {\n\t\ttype filter hook prerouting priority raw\n\t\ttcp dport 5000 tcp flags & (syn|ack) == syn add @links { iifname . tcp sport }\n\t}\n}"); err != nil {
		return err
	}
	p.from, _ = p.Host(clientHost).AddrOn("near")
	if p.scheme, err = schemeOf(16, cflb.Speck); err != nil {
		return err
	}
	if p.kernel, err = testbed.On(p.Host(clientHost), func() (*mptcp.Namespace, error) { return mptcp.Open(p.opts.Log) }); err != nil {
		return err
	}
	var slots []uint8
	for i := range subflowLinks {
		slots = append(slots, uint8(i))
	}
	p.balancer, err = openBalancer(p.Network, cflb.Speck, slots)
	return err
}

// serve accepts connections and counts their bytes until end is called.
func (p *placed) serve() (end func() error, err error) {
	l, err := testbed.On(p.Host(serverHost), func() (net.Listener, error) {
		var config net.ListenConfig
		config.SetMultipathTCP(true)
		return config.Listen(context.Background(), "tcp", subflowServer.String())
	})
	if err != nil {
		return nil, err
	}
	ended, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer context.AfterFunc(ended, func() { _ = c.Close() })()
				p.take(c)
				_ = c.Close()
			})
		}
	})
	return func() error {
		stop()
		err := l.Close()
		running.Wait()
		return err
	}, nil
}

// take reads until the connection ends. It answers a single byte.
func (p *placed) take(c net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := c.Read(b)
		p.received.Add(int64(n))
		if err != nil {
			return
		}
		if n == 1 {
			_, _ = c.Write(b[:1])
		}
	}
}

// connect opens a connection like open. It tries other ports if one is still in use by an earlier connection.
func (p *placed) connect(ctx context.Context, subflows int, chosen bool) (c net.Conn, ports []uint16, err error) {
	for range 20 {
		c, ports, err = p.open(ctx, subflows, chosen)
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return c, ports, err
}

// open opens a connection with a number of subflows and returns their ports. If chosen, each port leads over another
// link, counted from the last. Otherwise the ports are random.
func (p *placed) open(ctx context.Context, subflows int, chosen bool) (c net.Conn, ports []uint16, err error) {
	u := cflb.Flow(p.from, subflowServer.Addr(), 6)
	for i := range subflows {
		port := uint16(32768 + p.random.IntN(28232))
		for chosen {
			way := cflb.EncodeFlow([]int{subflowLinks - 1 - i}, subflowTTL)
			fits, err := p.scheme.SourcePorts(way, u, subflowServer.Port(), port, 60999, 1)
			if err != nil {
				return nil, nil, err
			}
			if len(fits) > 0 && !slices.Contains(ports, fits[0]) {
				port = fits[0]
				break
			}
			port = uint16(32768 + p.random.IntN(28232))
		}
		ports = append(ports, port)
	}
	c, err = testbed.On(p.Host(clientHost), func() (net.Conn, error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.from, ports[0])), Timeout: 10 * time.Second}
		d.SetMultipathTCP(true)
		return d.DialContext(ctx, "tcp", subflowServer.String())
	})
	if err != nil {
		return nil, nil, err
	}
	if err := p.join(ctx, c, ports); err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c, ports, nil
}

// join opens the connection's further subflows, and waits until they are up.
func (p *placed) join(ctx context.Context, c net.Conn, ports []uint16) error {
	if _, err := c.Write([]byte{0}); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return err
	}
	established, err := p.await(ctx, func(ev mptcp.Event) bool { return ev.Kind == mptcp.Established && ev.Local.Port() == ports[0] })
	if err != nil {
		return err
	}
	for i, port := range ports[1:] {
		err := p.kernel.CreateSubflow(mptcp.NewSubflow{
			Token: established.Token, Local: netip.AddrPortFrom(p.from, port), LocalID: uint8(i + 1), Remote: subflowServer,
		})
		if err != nil {
			return err
		}
	}
	for range ports[1:] {
		up, err := p.await(ctx, func(ev mptcp.Event) bool {
			return ev.Token == established.Token && (ev.Kind == mptcp.SubflowEstablished || ev.Kind == mptcp.SubflowClosed)
		})
		if err != nil || up.Kind != mptcp.SubflowEstablished {
			return errors.Join(err, fmt.Errorf("a subflow from %v did not come up: %w", up.Local, up.Err))
		}
	}
	return nil
}

func (p *placed) await(ctx context.Context, is func(mptcp.Event) bool) (mptcp.Event, error) {
	limit := time.After(20 * time.Second)
	for {
		select {
		case ev := <-p.events:
			if is(ev) {
				return ev, nil
			}
		case <-limit:
			return mptcp.Event{}, errors.New("the kernel reports no event that was waited for")
		case <-ctx.Done():
			return mptcp.Event{}, context.Cause(ctx)
		}
	}
}

var seenLink = regexp.MustCompile(`"(m\d)" \. (\d+)`)

// linksOf returns the number of links over which SYNs from these ports arrived.
func (p *placed) linksOf(ctx context.Context, ports []uint16) (int, error) {
	text, err := p.Run(ctx, secondRouter, "nft", "--numeric", "list", "set", "ip", "seen", "links")
	if err != nil {
		return 0, err
	}
	links, seen := map[string]bool{}, map[int]bool{}
	for _, m := range seenLink.FindAllSubmatch(text, -1) {
		port, _ := strconv.Atoi(string(m[2]))
		if slices.Contains(ports, uint16(port)) {
			links[string(m[1])], seen[port] = true, true
		}
	}
	if len(seen) != len(ports) {
		return 0, fmt.Errorf("the SYNs from %d of the ports %v were seen: %s", len(seen), ports, text)
	}
	_, err = p.Run(ctx, secondRouter, "nft", "flush", "set", "ip", "seen", "links")
	return len(links), err
}

// upload sends data and returns the goodput in bit/s after the start.
func (p *placed) upload(ctx context.Context, c net.Conn) (float64, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	ended := make(chan error, 1)
	end := time.Now().Add(subflowWarmUp + subflowMeasured + time.Second)
	if err := c.SetWriteDeadline(end); err != nil {
		return 0, err
	}
	go func() {
		b := make([]byte, 256<<10)
		for {
			if _, err := c.Write(b); err != nil {
				ended <- err
				return
			}
		}
	}()
	time.Sleep(subflowWarmUp)
	before, start := p.received.Load(), time.Now()
	time.Sleep(subflowMeasured)
	bits := 8 * float64(p.received.Load()-before) / time.Since(start).Seconds()
	select {
	case err := <-ended:
		return 0, fmt.Errorf("the upload ended early: %w", err)
	default:
	}
	if err := c.SetWriteDeadline(time.Now()); err != nil {
		return 0, err
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, fmt.Errorf("the upload ended early: %w", err)
	}
	return bits, nil
}
