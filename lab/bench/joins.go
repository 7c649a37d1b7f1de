package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/stats"
)

// openHost is a waypoint that requires no authentication.
const openHost = "open"

// joinsPlan sets the amount of work.
type joinsPlan struct {
	repetitions int
	each        int // SYNs, each from a different port
}

// acceptedJoins measures how many joins per second a waypoint forwards to a server. It sends prepared SYNs to the
// waypoint. On veth links, a packet crosses the waypoint within the system call that sends it. Therefore one core does
// all the work, and is saturated at any speed.
func acceptedJoins(ctx context.Context, o Options) ([]Measurement, error) {
	return compareJoins(ctx, o, joinsPlan{repetitions: 9, each: 40000})
}

func compareJoins(ctx context.Context, o Options, plan joinsPlan) (found []Measurement, err error) {
	s, err := openChain(ctx, o, []string{memberHost, openHost}, []string{plainHost})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.countSYNs(ctx); err != nil {
		return nil, err
	}
	routes, err := s.synRoutes(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, g := range routes {
			_ = unix.Close(g.fd)
		}
	}()
	const warmUp = 100
	for _, g := range routes { // so that neighbours are looked up
		if _, err := s.sendSYNs(ctx, g, 0, warmUp, false); err != nil {
			return nil, fmt.Errorf("%s: %w", g.name, err)
		}
	}
	err = inTurns(plan.repetitions, len(routes), func(repetition, i int) error {
		g := routes[i]
		v, err := s.sendSYNs(ctx, g, uint32(repetition+1), plan.each, true)
		if err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		g.bursts = append(g.bursts, v)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return joinsFigures(routes), nil
}

// synRoute is a route for SYNs, through one forwarder.
type synRoute struct {
	name      string
	forwarder string
	fd        int
	source    synSource
	agent     *crew.Process // the forwarder's; nil: it has none
	asker     *asker        // requests a new key; nil if none is needed
	bursts    []burst
}

// synRoutes sets up all routes, plain forwarding first.
func (s *network) synRoutes(ctx context.Context) ([]*synRoute, error) {
	agents := map[string]*crew.Process{}
	for host, proof := range map[string]bool{memberHost: true, openHost: false} {
		agent, err := s.startWaypoint(ctx, []config.Kind{config.InBand, config.Mapped}, host, proof)
		if err != nil {
			return nil, err
		}
		agents[host] = agent
	}
	member, err := s.startAsker(ctx, clientHost, memberHost)
	if err != nil {
		return nil, err
	}
	open, err := s.startAsker(ctx, clientHost, openHost)
	if err != nil {
		return nil, err
	}
	mapped, err := member.ask(transferPort, 1)
	if err != nil {
		return nil, err
	}
	all := []*synRoute{
		{name: "forwarded by a router", forwarder: plainHost},
		{name: "in-band, authenticated", forwarder: memberHost, asker: member},
		{name: "in-band, not authenticated", forwarder: openHost, asker: open},
		{name: "mapped", forwarder: memberHost},
	}
	for i, g := range all {
		server := s.onLink(serverHost, toServer(g.forwarder))
		g.agent = agents[g.forwarder]
		g.source.from, g.source.to = s.onLink(clientHost, toClient(g.forwarder)), netip.AddrPortFrom(s.onLink(g.forwarder, toClient(g.forwarder)), transferPort)
		switch {
		case i == 0:
			g.source.to = netip.AddrPortFrom(server, transferPort)
		case g.asker == nil:
			g.source.to = netip.AddrPortFrom(g.source.to.Addr(), mapped.Port)
		default:
			g.source.server = server
		}
		link := toClient(g.forwarder)
		if g.fd, err = s.openPacketSocket(link); err != nil {
			return nil, err
		}
		if g.source.client, err = s.hardwareAddr(clientHost, link); err != nil {
			return nil, err
		}
		if g.source.next, err = s.hardwareAddr(g.forwarder, link); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// burst is the result of sending many SYNs.
type burst struct {
	sent, arrived int
	seconds       float64       // to send them
	cpu           time.Duration // the sender's, with all work that the packets cause
	agent         time.Duration // the waypoint's agent's, until it has forgotten all SYNs
}

// each returns the time for each SYN, in microseconds.
func (v burst) each(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(v.sent)
}

// sendSYNs sends SYNs that differ from all earlier ones, then makes the waypoint forget them. If all is set, a lost SYN is
// an error.
func (s *network) sendSYNs(ctx context.Context, g *synRoute, turn uint32, n int, all bool) (v burst, err error) {
	if g.asker != nil {
		grant, err := g.asker.admit()
		if err != nil {
			return v, err
		}
		g.source.auth = proof(grant)
	}
	frames := make([][]byte, n)
	for i := range frames {
		const lowest = 1024
		frames[i] = g.source.frame(uint16(lowest+i), turn)
	}
	before, err := s.arrivedSYNs(ctx)
	if err != nil {
		return v, err
	}
	agent, err := g.readAgent()
	if err != nil {
		return v, err
	}
	if v, err = sendFrames(g.fd, frames); err != nil {
		return v, fmt.Errorf("send SYNs: %w", err)
	}
	const settle = 300 * time.Millisecond // for the agent to write its log
	if err := crew.Pause(ctx, settle); err != nil {
		return v, err
	}
	after, err := s.arrivedSYNs(ctx)
	if err != nil {
		return v, err
	}
	v.arrived = after - before
	if all && v.arrived != n {
		return v, fmt.Errorf("%d of %d SYNs arrived at the server", v.arrived, n)
	}
	err = s.Host(g.forwarder).Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
	if err != nil {
		return v, fmt.Errorf("forget the connections of %s: %w", g.forwarder, err)
	}
	if err := crew.Pause(ctx, settle); err != nil {
		return v, err
	}
	now, err := g.readAgent()
	v.agent = now - agent
	return v, err
}

// readAgent returns the processor time that the forwarder's agent has taken.
func (g *synRoute) readAgent() (time.Duration, error) {
	if g.agent == nil {
		return 0, nil
	}
	return g.agent.CPU()
}

// sendFrames sends frames as fast as the kernel takes them.
func sendFrames(fd int, frames [][]byte) (v burst, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before); err != nil {
		return v, err
	}
	start := time.Now()
	for _, f := range frames {
		if _, err := unix.Write(fd, f); err != nil {
			return v, err
		}
	}
	v.seconds, v.sent = time.Since(start).Seconds(), len(frames)
	err = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after)
	v.cpu = time.Duration(after.Nano() - before.Nano())
	return v, err
}

// countSYNs makes the server count SYNs and drop them.
func (s *network) countSYNs(ctx context.Context) error {
	return s.Host(serverHost).Nft(ctx, `table ip bench {
	counter arrived { }
	chain prerouting {
		type filter hook prerouting priority raw
		tcp flags syn counter name arrived drop
	}
}`)
}

func (s *network) arrivedSYNs(ctx context.Context) (n int, err error) {
	out, err := s.Run(ctx, serverHost, "nft", "list", "counter", "ip", "bench", "arrived")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(out), "packets ")
	if _, err := fmt.Sscanf(rest, "%d", &n); err != nil {
		return 0, fmt.Errorf("read how many SYNs arrived: %q", out)
	}
	return n, nil
}

// joinsFigures returns the number of joins per second of a core's time, and the extra cost of a join over a SYN that is
// only forwarded.
func joinsFigures(routes []*synRoute) (found []Measurement) {
	var plain float64
	for i, g := range routes {
		var rates, elapsed, costs, agents []float64
		for r, v := range g.bursts {
			rates = append(rates, float64(v.sent)/v.cpu.Seconds())
			elapsed = append(elapsed, float64(v.sent)/v.seconds)
			costs = append(costs, v.each(v.cpu)-routes[0].bursts[r].each(routes[0].bursts[r].cpu))
			agents = append(agents, v.each(v.agent))
		}
		rate := of("joins: "+g.name, "SYNs/s", rates)
		rate.Note = fmt.Sprintf("in a second of the time of one core, which also sends the SYNs; with what else the machine did, %.0f in a second", stats.Median(elapsed))
		if i == 0 {
			plain = rate.Value
			rate.Note += fmt.Sprintf("; %d at a time, from one address and as many ports, and all of them arrive at the server", g.bursts[0].sent)
			found = append(found, rate)
			continue
		}
		cost := of("joins: processor time, "+g.name, "µs", costs)
		cost.Note = "what one takes more than a SYN that a router forwards"
		agent := of("joins: waypoint's agent's processor time, "+g.name, "µs", agents)
		agent.Note = "for its log, on any core: the beginning and the end of a connection"
		found = append(found, rate.against(plain), cost, agent)
	}
	return found
}
