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
	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/testbed"
)

// Hosts. alice is the client, mallory a member that lies, hub the coordinator,
// home the client's NAT. near and far are routers: the direct path is the link
// between them, and every waypoint has a link to each.
const (
	alice   = "alice"
	mallory = "mallory"
	liar    = "liar"
	hub     = "hub"
	server  = "server"
	home    = "home"
	near    = "near"
	far     = "far"
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
	plan     plan.World
	programs programs.Pair
	dir      string // logs and keys
	log      *slog.Logger
	net      *testbed.Network
	base     map[string]testbed.LinkParams // of each link, as built

	waypoints []string // honest ones
	agents    map[string]*agent
	died      *died           // what dcol's processes did wrong
	life      context.Context // of all programs
	end       context.CancelFunc
}

// build makes the network of a plan and starts all agents.
func build(ctx context.Context, p plan.Plan, pair programs.Pair, dir string, died *died, log *slog.Logger) (*world, error) {
	w := &world{died: died, plan: p.World, programs: pair, dir: dir, log: log, agents: map[string]*agent{}, base: map[string]testbed.LinkParams{}}
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
	w.net = network
	if err := w.furnish(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// close ends every program and removes the network.
func (w *world) close() error {
	w.end()
	return w.net.Close()
}

func (w *world) host(name string) *testbed.Host { return w.net.Host(name) }

// client returns the client's address on its own link.
func (w *world) client() netip.Addr {
	v4, _ := w.host(alice).AddrOn(w.clientLink())
	return v4
}

// members are the hosts that run an agent.
func (w *world) members() []string {
	all := append([]string{alice}, w.waypoints...)
	if w.plan.Coordinator {
		all = append(all, hub)
	}
	return all
}

// allWaypoints are the honest ones, and the one that lies, if there is one.
func (w *world) allWaypoints() []string {
	if w.plan.Liar != "" {
		return append(append([]string(nil), w.waypoints...), liar)
	}
	return w.waypoints
}

// clientLink is the name of the link that the client is on.
func (w *world) clientLink() string {
	if w.plan.NAT {
		return lanLink
	}
	return accessLink
}

// spec is the network: its links' rates leave the processor idle.
func (w *world) spec(seed uint64) testbed.Spec {
	s := testbed.Spec{Seed: seed, Backend: testbed.BackendVeth}
	if w.plan.Emulated {
		s.Backend = testbed.BackendWire
	}
	host := func(name string, forward bool) {
		s.Hosts = append(s.Hosts, testbed.HostSpec{Name: name, Forward: forward})
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
	for _, name := range []string{alice, server, mallory, hub} {
		host(name, false)
	}
	if w.plan.NAT {
		link(lanLink, alice, home, 100*mbit, ms/2, 1)
		link(accessLink, home, near, 20*mbit, 2*ms, 1)
		s.Hosts = append(s.Hosts, testbed.HostSpec{Name: home, Forward: true, NAT: testbed.NAT{Inside: []string{lanLink}}})
	} else {
		link(accessLink, alice, near, 20*mbit, 2*ms, 1)
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

// Buffers of the programs' hosts. Linux 6.18 never takes the segment that an MPTCP
// connection waits for once what came out of order fills the receive buffer, which
// small segments do long before the window that was offered is used up: the
// connection hangs for ever, whatever a path manager does. So senders may have less
// under way here than receivers have room for.
const (
	receiveBuffers = "4096 524288 6291456"
	sendBuffers    = "4096 16384 65536"
)

// mptcpOff is for how long Linux turns MPTCP off for the whole host once SYNs with MPTCP
// were lost and the next one, as plain TCP, was not. A link that was down for a while is
// enough. All connections that begin in that hour would be plain TCP, and show nothing.
const mptcpOff = "/proc/sys/net/mptcp/blackhole_timeout"

// furnish sets the hosts up, makes the collective, and starts it.
func (w *world) furnish(ctx context.Context) error {
	settings := map[string]string{"net.ipv4.tcp_rmem": receiveBuffers, "net.ipv4.tcp_wmem": sendBuffers}
	if w.plan.Checksums {
		settings["net.mptcp.checksum_enabled"] = "1"
	}
	if _, err := os.Stat(mptcpOff); err == nil { // Linux before 6.12 has no such thing
		settings["net.mptcp.blackhole_timeout"] = "0"
	}
	for _, name := range []string{alice, server} {
		for key, value := range settings {
			if err := w.host(name).Sysctl(key, value); err != nil {
				return err
			}
		}
	}
	if w.plan.Coordinator {
		return w.startCollective(ctx)
	}
	if err := w.makeAuthority(); err != nil {
		return err
	}
	return w.startAll(ctx)
}

const etc = "/etc/dcol/"

// makeAuthority gives all members certificates of a throw-away authority.
func (w *world) makeAuthority() error {
	ca, err := collective.InitCA(filepath.Join(w.dir, "ca"), "chaos")
	if err != nil {
		return fmt.Errorf("make the authority: %w", err)
	}
	for _, name := range append([]string{alice, mallory}, w.allWaypoints()...) {
		issued, err := ca.Issue(collective.Request{Name: name, Validity: 24 * time.Hour})
		if err != nil {
			return err
		}
		for to, from := range map[string]string{
			"member.crt": issued.CertFile, "member.key": issued.KeyFile, "ca.crt": ca.CertFile(), "ca.crl": ca.CRLFile(),
		} {
			data, err := os.ReadFile(from)
			if err != nil {
				return fmt.Errorf("install certificates: %w", err)
			}
			if err := w.write(name, etc+to, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// write puts a file into a host's own tree.
func (w *world) write(host, path string, data []byte) error {
	err := w.host(host).Do(func() error { return os.WriteFile(path, data, 0o600) })
	if err != nil {
		return fmt.Errorf("on %s: %w", host, err)
	}
	return nil
}

// identity loads a member's identity for this process, from copies of its files.
func (w *world) identity(host string) (*collective.Identity, error) {
	dir := filepath.Join(w.dir, "identity-"+host)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for _, name := range []string{"member.crt", "member.key", "ca.crt", "ca.crl"} {
		var data []byte
		err := w.host(host).Do(func() (err error) {
			data, err = os.ReadFile(w.identityDir() + name)
			return err
		})
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("copy the identity of %s: %w", host, err)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	return collective.Load(collective.Files{
		Certificate: file("member.crt"), Key: file("member.key"), CA: file("ca.crt"), CRL: file("ca.crl"),
	}, w.log)
}

// identityDir is where a member's certificate lies on its host.
func (w *world) identityDir() string {
	if w.plan.Coordinator {
		return "/var/lib/dcol/identity/"
	}
	return etc
}
