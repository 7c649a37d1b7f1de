package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/remote"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// line is a network of a client, a server, and one host between them. That host forwards packets and runs the relays.
type line struct {
	*network
	client, server *exchangeEnd
}

const (
	middleHost   = "middle"
	exchangePort = 8000 // the server's
	relayPorts   = 7000 // the first relay's
	// idlePorts is the first port of relays that are started for idle connections. Behind all but the first of them are
	// servers of their own, at the ports that follow exchangePort.
	idlePorts = 7100
)

// lineSysctls holds the kernel parameters of all hosts of a line.
var lineSysctls = map[string]string{
	// With the default of 128 KiB, MPTCP uploads into a relay stand still for 200 ms at a time on links above
	// 1 Gbit/s without delay.
	"net.ipv4.tcp_rmem": "4096 4194304 33554432",
	// Very many connections follow each other.
	"net.ipv4.ip_local_port_range": "10000 65000",
	"net.ipv4.tcp_tw_reuse":        "1",
	"net.core.somaxconn":           "65535",
	"net.ipv4.tcp_max_syn_backlog": "65535",
}

// openLine builds a line whose links have a delay, and starts its client and server.
func openLine(ctx context.Context, o Options, backend string, delay time.Duration) (l *line, err error) {
	spec := testbed.Spec{Seed: 1, Backend: backend, Hosts: []testbed.HostSpec{
		{Name: clientHost, Sysctls: lineSysctls}, {Name: middleHost, Sysctls: lineSysctls, Forward: true}, {Name: serverHost, Sysctls: lineSysctls},
	}}
	p := testbed.LinkParams{Delay: delay}
	for _, link := range []testbed.LinkSpec{{Name: toClient(middleHost), A: clientHost, B: middleHost}, {Name: toServer(middleHost), A: middleHost, B: serverHost}} {
		link.AtoB, link.BtoA = p, p
		spec.Links = append(spec.Links, link)
	}
	s, err := openNetwork(ctx, o, spec, nil)
	if err != nil {
		return nil, err
	}
	l = &line{network: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.server, err = s.startServer(ctx, &ExchangeServer{At: l.serverAt()}); err != nil {
		return nil, err
	}
	if l.client, err = s.startEnd(ctx, clientHost, ExchangeClientPart, &ExchangeClient{}); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *line) serverAt() netip.AddrPort {
	return netip.AddrPortFrom(l.onLink(serverHost, toServer(middleHost)), exchangePort)
}

func (l *line) relayAt(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(l.onLink(middleHost, toClient(middleHost)), port)
}

// exchangeEnd is a client or server that runs on a host.
type exchangeEnd struct {
	*crew.Process
	remote *remote.Client
}

func (s *network) startEnd(ctx context.Context, host, part string, configuration any) (*exchangeEnd, error) {
	return s.startEndBy(ctx, host, part, configuration)
}

// startEndBy is like startEnd, but another program starts the end. It gets the command line as further arguments.
func (s *network) startEndBy(ctx context.Context, host, part string, configuration any, by ...string) (*exchangeEnd, error) {
	p, client, err := s.StartRemote(ctx, host, part, append(by, s.Part(part, configuration)...)...)
	if err != nil {
		return nil, err
	}
	return &exchangeEnd{p, client}, nil
}

func (e *exchangeEnd) call(method string, args, reply any) error {
	if err := e.remote.Call(method, args, reply); err != nil {
		return e.Trouble(err)
	}
	return nil
}

// runningRelay is a relay on a line.
type runningRelay struct {
	*relayed
	process *crew.Process // nil: the kernel forwards
	target  Target
}

// startAll starts all relays.
func (l *line) startAll(ctx context.Context, relays []*relayed) (all []*runningRelay, err error) {
	for i, r := range relays {
		started, err := l.start(ctx, r, relayPorts+uint16(i), l.serverAt())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		all = append(all, started)
	}
	return all, nil
}

// start starts a relay to a server, and waits until connections pass through it.
func (l *line) start(ctx context.Context, r *relayed, port uint16, to netip.AddrPort) (*runningRelay, error) {
	if r.command == nil {
		return &runningRelay{r, nil, Target{To: l.serverAt()}}, nil
	}
	started := &runningRelay{relayed: r, target: Target{To: l.relayAt(port), Multipath: r.multipath}}
	if r.converts {
		started.target.Server = to
	}
	argv, err := r.command(l, started.target.To, to)
	if err != nil {
		return nil, err
	}
	if started.process, err = l.Start(ctx, middleHost, fmt.Sprintf("relay-%d", port), argv...); err != nil {
		return nil, err
	}
	return started, started.process.Await(ctx, startLimit, func() error {
		return l.client.remote.Call("First", started.target, new(time.Duration))
	})
}

// spent returns the processor time that the relay's process has taken.
func (r *runningRelay) spent() (time.Duration, error) {
	if r.process == nil {
		return 0, nil
	}
	return r.process.CPU()
}

// transfers measures n connections, one after the other, and returns the one with the median goodput: some MPTCP uploads
// stand still for 200 ms at a time when they begin.
func (l *line) transfers(ctx context.Context, r *runningRelay, d direction, plan transferPlan, n int) (relayTransfer, error) {
	var all []relayTransfer
	repeating := 0
	for range n {
		before, err := l.repeated()
		if err != nil {
			return relayTransfer{}, err
		}
		t, err := l.transfer(ctx, r, d, plan)
		if err != nil {
			return t, err
		}
		after, err := l.repeated()
		if err != nil {
			return t, err
		}
		if after > before {
			repeating++
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b relayTransfer) int { return cmp.Compare(a.goodput(), b.goodput()) })
	middle := all[len(all)/2]
	middle.repeating = repeating
	return middle, nil
}

// repeated returns how often MPTCP has sent data again, on the client or to it.
func (l *line) repeated() (n int, err error) {
	for _, host := range []string{clientHost, middleHost} {
		text, err := l.Host(host).ReadFile("/proc/1/net/netstat") // of the host's init
		if err != nil {
			return 0, err
		}
		n += parseRepeated(string(text))
	}
	return n, nil
}

// parseRepeated returns MPTCP's counter of retransmissions in the text of /proc/net/netstat, or 0 if it has none.
func parseRepeated(text string) int {
	n, err := mptcp.ParseCounter(text, "MPTCPRetrans")
	if err != nil {
		return 0
	}
	return int(n)
}

// transfer measures one connection.
func (l *line) transfer(ctx context.Context, r *runningRelay, d direction, plan transferPlan) (t relayTransfer, err error) {
	receiver := l.client
	if d == up {
		receiver = l.server
	}
	if err := l.client.call("Begin", Transfer{r.target, d == up}, nil); err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, l.client.call("End", struct{}{}, nil)) }()
	if err := crew.Pause(ctx, plan.rampUp); err != nil {
		return t, err
	}
	before, err := r.read(receiver)
	if err != nil {
		return t, err
	}
	// A transfer that stands still is measured until it goes on.
	for waited := time.Duration(0); t.bytes == 0; waited += plan.look {
		if waited > exchangePatience {
			return t, errStandsStill
		}
		if err := crew.Pause(ctx, plan.look); err != nil {
			return t, err
		}
		after, err := r.read(receiver)
		if err != nil {
			return t, err
		}
		t = after.since(before)
	}
	return t, nil
}

var errStandsStill = fmt.Errorf("nothing arrives within %v", exchangePatience)

// relayCounters is a snapshot of the counters of a transfer through a relay.
type relayCounters struct {
	Received
	spent time.Duration
}

func (r *runningRelay) read(receiver *exchangeEnd) (c relayCounters, err error) {
	if err := receiver.call("Received", struct{}{}, &c.Received); err != nil {
		return c, err
	}
	c.spent, err = r.spent()
	return c, err
}

func (c relayCounters) since(before relayCounters) relayTransfer {
	return relayTransfer{bytes: float64(c.Bytes - before.Bytes), seconds: (c.At - before.At).Seconds(), spent: c.spent - before.spent}
}

// exchange measures many short connections.
func (l *line) exchange(r *runningRelay, ask Exchanges) (x exchanged, err error) {
	before, err := r.spent()
	if err != nil {
		return x, err
	}
	if err := l.client.call("Exchange", ask, &x.Exchanged); err != nil {
		return x, err
	}
	after, err := r.spent()
	x.spent = after - before
	return x, err
}

// trips returns the median of some round trips, in microseconds.
func (l *line) trips(r *runningRelay, n int) (float64, error) {
	var took []time.Duration
	err := l.client.call("Trip", Trips{r.target, n}, &took)
	var us []float64
	for _, t := range took {
		us = append(us, float64(t.Nanoseconds())/1e3)
	}
	return stats.Median(us), err
}

// first returns how long a new connection waits for the first byte of an answer, in milliseconds.
func (l *line) first(to Target) (float64, error) {
	var took time.Duration
	err := l.client.call("First", to, &took)
	return stats.Milliseconds(took), err
}

// idle returns the relay's user memory for each idle connection, in bytes. It also returns the goodput of another connection
// beside them, as a share of its goodput without them. The connections are spread over new processes of the relay: pairs
// has the number for each. The other connection is relayed by the first of them.
func (l *line) idle(ctx context.Context, r *runningRelay, pairs []int, plan transferPlan, transfers int) (each, beside float64, err error) {
	var all []*idling
	defer func() {
		for _, i := range all {
			err = errors.Join(err, i.end())
		}
	}()
	memory, held := int64(0), 0
	for number, n := range pairs {
		i, err := l.startIdling(ctx, r.relayed, uint16(number))
		if err != nil {
			return 0, 0, err
		}
		all = append(all, i)
		grown, err := i.hold(n)
		if err != nil {
			return 0, 0, err
		}
		memory, held = memory+grown, held+n
	}
	with, err := l.transfers(ctx, all[0].relay, down, plan, transfers)
	if err != nil {
		return 0, 0, err
	}
	for _, i := range all {
		if err := i.release(); err != nil {
			return 0, 0, err
		}
	}
	without, err := l.transfers(ctx, all[0].relay, down, plan, transfers)
	return float64(memory) / float64(held), with.goodput() / without.goodput(), err
}

// idling is a process of a relay with idle connections. A process may not have enough open files for all connections of one
// end, so that each relay after the first has a client and a server of its own.
type idling struct {
	relay  *runningRelay
	client *exchangeEnd
	own    []*exchangeEnd
}

func (l *line) startIdling(ctx context.Context, r *relayed, number uint16) (i *idling, err error) {
	i = &idling{client: l.client}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.end())
		}
	}()
	to := netip.AddrPortFrom(l.serverAt().Addr(), exchangePort+number)
	if number > 0 {
		server, err := l.startServer(ctx, &ExchangeServer{At: to})
		if err != nil {
			return i, err
		}
		i.own = append(i.own, server)
		if i.client, err = l.startEnd(ctx, clientHost, ExchangeClientPart, &ExchangeClient{}); err != nil {
			return i, err
		}
		i.own = append(i.own, i.client)
	}
	i.relay, err = l.start(ctx, r, idlePorts+number, to)
	return i, err
}

// hold opens connections, and returns by how many bytes they make the relay's process grow.
func (i *idling) hold(n int) (grown int64, err error) {
	before, err := i.relay.process.Resident()
	if err != nil {
		return 0, err
	}
	if err := i.client.call("Hold", Holding{i.relay.target, n}, nil); err != nil {
		return 0, i.relay.process.Trouble(err)
	}
	after, err := i.relay.process.Resident()
	return after - before, err
}

func (i *idling) release() error { return i.client.call("Release", struct{}{}, nil) }

func (i *idling) end() error {
	var err error
	if i.relay != nil {
		i.relay.process.Kill()
		err = i.release()
	}
	for _, e := range i.own {
		e.Kill()
	}
	return err
}

const (
	usualMTU = 1500
	headers  = 40 // of IPv4 and TCP, without options
)

// setMTU sets the size of packets on all links.
func (l *line) setMTU(mtu int) error {
	for _, end := range []struct{ host, link string }{
		{clientHost, toClient(middleHost)}, {middleHost, toClient(middleHost)}, {middleHost, toServer(middleHost)}, {serverHost, toServer(middleHost)},
	} {
		name := l.Host(end.host).Interface(end.link)
		err := l.Host(end.host).Do(func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(link, mtu)
		})
		if err != nil {
			return fmt.Errorf("set the MTU of interface %s of %s to %d: %w", name, end.host, mtu, err)
		}
	}
	return nil
}

// limitedRate is the rate of a common network card, in bits per second.
const limitedRate = 1e9

// limitRate limits both directions of the client's link to limitedRate, or removes the limits.
func (l *line) limitRate(on bool) error {
	const rate, burst, queue = limitedRate / 8, 128 << 10, 1 << 20
	buffer := netlink.Xmittime(rate, burst) // not on the host's thread, which has no /proc/self
	for _, host := range []string{clientHost, middleHost} {
		name := l.Host(host).Interface(toClient(middleHost))
		err := l.Host(host).Do(func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
			if !on {
				return netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "tbf"})
			}
			return netlink.QdiscAdd(&netlink.Tbf{QdiscAttrs: attrs, Rate: rate, Limit: queue, Buffer: buffer})
		})
		if err != nil {
			return fmt.Errorf("set the rate of interface %s of %s (it needs the kernel's tbf): %w", name, host, err)
		}
	}
	return nil
}
