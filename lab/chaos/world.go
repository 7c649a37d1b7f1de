package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/chaos/twin"
	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Hosts. alice is the client, mallory a member that lies, hub the coordinator, home the client's NAT. near and far are
// routers: the direct path is the link between them, and every waypoint has a link to each. The converter is near the
// server; phone is behind alice, who is its gateway.
const (
	alice     = "alice"
	phone     = "phone"
	mallory   = "mallory"
	liar      = "liar"
	hub       = "hub"
	converter = "converter"
	server    = "server"
	home      = "home"
	near      = "near"
	far       = "far"
)

// Links beside those of waypoints.
const (
	lanLink    = "lan" // behind the client's NAT
	accessLink = "access"
	directLink = "direct"
	rackLink   = "rack" // the server's
)

func inLink(waypoint string) string  { return waypoint + "-in" }
func outLink(waypoint string) string { return waypoint + "-out" }

// world is a running network with its agents.
type world struct {
	crew.Crew
	plan plan.World
	dir  string // logs and keys
	log  *slog.Logger
	base map[string]testbed.LinkParams // of each link, as built

	waypoints []string // honest ones
	agents    map[string]*agent
	failures  *collector      // of dcol's processes
	life      context.Context // of all programs
	end       context.CancelFunc
}

// build makes the network of a plan and starts all agents.
func build(ctx context.Context, p plan.Plan, pair programs.Pair, dir string, failures *collector, log *slog.Logger) (*world, error) {
	w := &world{
		Crew: crew.Crew{Programs: pair, Logs: dir}, failures: failures, plan: p.World, dir: dir, log: log,
		agents: map[string]*agent{}, base: map[string]testbed.LinkParams{},
	}
	w.life, w.end = context.WithCancel(context.WithoutCancel(ctx))
	for i := range p.World.Waypoints {
		w.waypoints = append(w.waypoints, fmt.Sprintf("w%d", i+1))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	network, err := testbed.Build(ctx, w.spec(p.Seed), log)
	if err != nil {
		w.end()
		return nil, err
	}
	w.Network = network
	if err := w.setUp(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// close ends every program and removes the network.
func (w *world) close() error {
	w.end()
	return w.Network.Close()
}

// client returns the client's address on its own link.
func (w *world) client() netip.Addr { return w.on(alice, w.clientLink()) }

// on returns the address of a host on a link, of the family that this world uses.
func (w *world) on(host, link string) netip.Addr {
	v4, v6 := w.Host(host).AddrOn(link)
	if w.plan.IPv6 {
		return v6
	}
	return v4
}

// entrance returns the place at which converted streams begin.
func (w *world) entrance() twin.Entrance {
	if w.plan.Converter == plan.ByGateway {
		return twin.Entrance{Host: w.Host(phone)}
	}
	return twin.Entrance{Host: w.Host(alice), Proxy: proxy}
}

// proxy is the address at which the client's relay takes requests.
var proxy = netip.MustParseAddrPort("127.0.0.1:1080")

// isClient reports whether streams may begin at an address now.
func (w *world) isClient(a netip.Addr) bool {
	return a == w.client() || w.plan.Converter == plan.ByGateway && a == w.Host(phone).Addr()
}

// members returns the hosts that run an agent.
func (w *world) members() []string {
	all := append([]string{alice}, w.waypoints...)
	if w.plan.Coordinator {
		all = append(all, hub)
	}
	if w.plan.Converter != "" {
		all = append(all, converter)
	}
	return all
}

// allWaypoints returns the honest waypoints, and the one that lies if there is one.
func (w *world) allWaypoints() []string {
	if w.plan.Liar != "" {
		return append(append([]string(nil), w.waypoints...), liar)
	}
	return w.waypoints
}

// clientLink returns the name of the client's link.
func (w *world) clientLink() string {
	if w.plan.NAT {
		return lanLink
	}
	return accessLink
}

// spec returns the network. Its links are slow enough to leave the processor idle.
func (w *world) spec(seed uint64) testbed.Spec {
	s := testbed.Spec{Seed: seed, Backend: testbed.BackendVeth}
	if w.plan.Emulated {
		s.Backend = testbed.BackendEmulator
	}
	host := func(name string, forward bool) {
		h := testbed.HostSpec{Name: name, Forward: forward, IPv6Only: w.plan.IPv6 && !forward}
		if name == server {
			h.Subflows = w.plan.ServerTakes
		}
		s.Hosts = append(s.Hosts, h)
	}
	link := func(name, a, b string, rate int64, delay time.Duration, cost int) {
		var p testbed.LinkParams
		if w.plan.Emulated {
			p = testbed.LinkParams{Rate: rate, Delay: delay}
		}
		w.base[name] = p
		s.Links = append(s.Links, testbed.LinkSpec{Name: name, A: a, B: b, AtoB: p, BtoA: p, Cost: cost})
	}
	const mbit, ms = 1_000_000, time.Millisecond
	host(near, true)
	host(far, true)
	host(alice, w.plan.Converter == plan.ByGateway)
	for _, name := range []string{server, mallory, hub} {
		host(name, false)
	}
	if w.plan.NAT {
		link(lanLink, alice, home, 100*mbit, ms/2, 1)
		link(accessLink, home, near, 20*mbit, 2*ms, 1)
		s.Hosts = append(s.Hosts, testbed.HostSpec{Name: home, Forward: true, NAT: testbed.NAT{Inside: []string{lanLink}}})
	} else {
		link(accessLink, alice, near, 20*mbit, 2*ms, 1)
	}
	if w.plan.Converter != "" {
		host(converter, false)
		link(converter, far, converter, 50*mbit, ms, 1)
	}
	if w.plan.Converter == plan.ByGateway {
		host(phone, false)
		link(phone, phone, alice, 100*mbit, ms/2, 1)
	}
	link(directLink, near, far, 8*mbit, 12*ms, 1)
	link(rackLink, far, server, 50*mbit, ms, 1)
	link(mallory, near, mallory, 20*mbit, 2*ms, 1)
	link(hub, near, hub, 20*mbit, 2*ms, 1)
	for i, name := range w.allWaypoints() {
		host(name, false)
		link(inLink(name), near, name, 8*mbit, time.Duration(4+3*i)*ms, 100)
		link(outLink(name), name, far, 8*mbit, 6*ms, 100)
	}
	return s
}

// Buffers of the programs' hosts. If out-of-order data fills an MPTCP connection's receive buffer, Linux 6.18 never takes
// the segment that the connection waits for, and the connection hangs for ever, whatever a path manager does. Small
// segments fill the buffer long before the offered window is used up. So senders here may have less data in flight than
// receivers have room for.
const (
	receiveBuffers = "4096 524288 6291456"
	sendBuffers    = "4096 16384 65536"
)

// mptcpOff sets the time for which Linux turns MPTCP off on the whole host after SYNs with MPTCP were lost and the next
// SYN, without MPTCP, was not. A link that is down for a while is enough to cause that. All connections of the next hour
// would be plain TCP, and test nothing.
const mptcpOff = "/proc/sys/net/mptcp/blackhole_timeout"

// setUp sets the hosts' kernels up, makes the collective, and starts it.
func (w *world) setUp(ctx context.Context) error {
	settings := map[string]string{"net.ipv4.tcp_rmem": receiveBuffers, "net.ipv4.tcp_wmem": sendBuffers}
	if w.plan.Checksums {
		settings["net.mptcp.checksum_enabled"] = "1"
	}
	if _, err := os.Stat(mptcpOff); err == nil { // Linux before 6.12 has no such thing
		settings["net.mptcp.blackhole_timeout"] = "0"
	}
	ends := []string{alice, server}
	if w.plan.Converter != "" {
		ends = append(ends, converter)
	}
	for _, name := range ends {
		for key, value := range settings {
			if err := w.Host(name).Sysctl(key, value); err != nil {
				return err
			}
		}
	}
	if err := w.makeMembers(ctx); err != nil {
		return err
	}
	return w.startAll(ctx)
}

// identity loads a member's identity for this process, from copies of its files.
func (w *world) identity(host string) (*collective.Identity, error) {
	dir := filepath.Join(w.dir, "identity-"+host)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	from, to := crew.FilesIn(crew.IdentityDir(w.plan.Coordinator)), crew.FilesIn(dir)
	for from, to := range map[string]string{from.Certificate: to.Certificate, from.Key: to.Key, from.CA: to.CA, from.CRL: to.CRL} {
		data, err := w.Host(host).ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, data, 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("copy the identity of %s: %w", host, err)
		}
	}
	return collective.Load(to, w.log)
}
