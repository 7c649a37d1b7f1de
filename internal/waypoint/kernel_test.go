package waypoint

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

func TestTrafficThroughAMapping(t *testing.T) {
	for name, c := range map[string]struct {
		client, waypoint, egress netip.Addr
		listen                   string
	}{
		"IPv4": {client4, waypoint4, egress4, "10.2.0.1:443"},
		"IPv6": {client6, waypoint6, egress6, "[fd02::1]:443"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			server := n.echo(t, c.listen)
			w, _ := n.start(t)
			if _, err := n.dial(t, netip.AddrPortFrom(c.waypoint, 443)); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("without a mapping: %v", err)
			}
			alice := peer("alice", c.client)
			grant := mustMap(t, w, alice, server, 443)
			if grant.Port != 443 || grant.Lease != n.config.MappingLifetime {
				t.Errorf("grant %+v", grant)
			}
			through := n.mustDial(t, netip.AddrPortFrom(c.waypoint, grant.Port))
			if through.seen.Addr() != c.egress {
				t.Errorf("the server sees %v, want the waypoint's %v", through.seen, c.egress)
			}
			if err := through.talk(1 << 20); err != nil {
				t.Fatal(err)
			}

			opened := n.waitEntry(t, "flow-opened", func(e attribution.Entry) bool { return e.Event == attribution.FlowOpened })
			from := netip.MustParseAddrPort(through.LocalAddr().String())
			if opened.Member != "alice" || opened.Serial != "5e" || opened.Client != c.client || opened.ClientPort != from.Port() ||
				opened.Port != 443 || opened.Server != server || opened.Egress != through.seen {
				t.Errorf("opened %+v", opened)
			}
			s, err := w.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if s.Mappings != 1 || len(s.Members) != 1 || s.Members[0].Flows != 1 || s.Members[0].Mappings != 1 ||
				s.Members[0].BytesFromClient < 1<<20 || s.Members[0].BytesToClient < 1<<20 || len(s.Problems) > 0 {
				t.Errorf("snapshot %+v", s)
			}

			// The flow ends when conntrack forgets it; here by hand, as closing takes it two minutes. A late ACK would
			// make conntrack begin it again, so nothing arrives any more.
			n.waypoint.Output(t, "nft", "table inet quiet { chain arriving { type filter hook prerouting priority -400; drop; }; }")
			n.waypoint.Must(t, func() error {
				ct, err := netstate.OpenConntrack()
				if err != nil {
					return err
				}
				return errors.Join(ct.Delete(netstate.MarkMatch{Value: 0x8000_0001, Mask: 0xffff_ffff}), ct.Close())
			})
			closed := n.waitEntry(t, "flow-closed", func(e attribution.Entry) bool { return e.Event == attribution.FlowClosed })
			if closed.Member != "alice" || closed.Egress != through.seen || !closed.Opened.Equal(opened.Time) ||
				closed.BytesFromClient == nil || *closed.BytesFromClient < 1<<20 || *closed.BytesToClient < 1<<20 {
				t.Errorf("closed %+v", closed)
			}
			if s, _ := w.Snapshot(); s.Members[0].Flows != 0 || s.Members[0].BytesToClient != *closed.BytesToClient {
				t.Errorf("snapshot %+v", s)
			}
			if first := n.entries(t)[0]; first.Event != attribution.MappingGranted || first.Client != c.client ||
				first.Port != 443 || first.Server != server || first.LeaseSeconds != 60 {
				t.Errorf("first entry %+v", first)
			}
		})
	}
}

// A mapping belongs to one client address; a neighbour cannot use it.
func TestOthersGetNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", netip.MustParseAddr("10.1.0.11")), server, 443)
	if _, err := n.dial(t, netip.AddrPortFrom(waypoint4, 443)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("from another address: %v", err)
	}
	// The host does not forward for strangers either, though forwarding is on now.
	n.client.Route(t, "10.2.0.0/24", "10.1.0.2")
	n.server.Route(t, "10.1.0.0/24", "10.2.0.2")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := n.client.Dial(ctx, server)
		done <- err
	}()
	eventually(t, "a stranger's packet is dropped", func() bool {
		rules := n.waypoint.Output(t, "nft", "list", "chain", "inet", "dcol", "forward")
		return strings.Contains(rules, "meta nfproto ipv4") && !strings.Contains(rules, "@guarded4 ct state ! established,related ct status ! dnat counter packets 0 ")
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("the host forwards for strangers")
	}
}

// A host that already forwarded before keeps forwarding.
func TestRouterStaysARouter(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	n.waypoint.Must(t, func() error { return netstate.SetSysctl("net/ipv4/ip_forward", "1") })
	n.start(t)
	n.client.Route(t, "10.2.0.0/24", "10.1.0.2")
	n.server.Route(t, "10.1.0.0/24", "10.2.0.2")
	if c := n.mustDial(t, server); c.seen.Addr() != client4 {
		t.Errorf("the server sees %v", c.seen)
	}
	n.cleanUp(t)
	n.waypoint.Must(t, func() error {
		if v, err := netstate.Sysctl("net/ipv4/ip_forward"); err != nil || v != "1" {
			t.Errorf("ip_forward %s, %v", v, err)
		}
		return nil
	})
}

// A restart breaks no connection and loses no mapping, and neither does a time without an agent.
func TestRestart(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	server6 := n.echo(t, "[fd02::1]:443")
	w, stop := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	mustMap(t, w, peer("bob", client6), server6, 443)
	before := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	n.waitEntry(t, "flow-opened", func(e attribution.Entry) bool { return e.Event == attribution.FlowOpened })
	stop()
	if err := before.talk(1000); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	n.mustDial(t, netip.AddrPortFrom(waypoint4, 443)).Close()

	handles := n.waypoint.Output(t, "nft", "-a", "list", "chain", "inet", "dcol", "prerouting")
	w, stop = n.start(t)
	if after := n.waypoint.Output(t, "nft", "-a", "list", "chain", "inet", "dcol", "prerouting"); after != handles {
		t.Error("the table was replaced, not adopted")
	}
	list, err := w.Mappings()
	if err != nil || len(list) != 2 {
		t.Fatalf("mappings %+v, %v", list, err)
	}
	if list[0].Member != "alice" || list[0].Server != server || list[0].Left <= 0 || list[0].Left > n.config.MappingLifetime ||
		list[1].Member != "bob" || list[1].Server != server6 {
		t.Errorf("mappings %+v", list)
	}
	found := n.waitEntry(t, "flow-found", func(e attribution.Entry) bool { return e.Event == attribution.FlowFound })
	if found.Member != "alice" || found.Serial != "5e" || found.Server != server {
		t.Errorf("found %+v", found)
	}
	if err := before.talk(1000); err != nil {
		t.Error(err)
	}
	if grant := mustMap(t, w, peer("alice", client4), server, 443); grant.Port != 443 {
		t.Errorf("grant %+v", grant)
	}
	stop()

	// With other limits the table is replaced, and that breaks nothing either.
	n.config.ConnectionsPerMember = 50
	n.config.BandwidthPerMember = 100 << 20
	w, _ = n.start(t)
	if list, err := w.Mappings(); err != nil || len(list) != 2 {
		t.Errorf("mappings %+v, %v", list, err)
	}
	if err := before.talk(1000); err != nil {
		t.Error(err)
	}
	if err := n.mustDial(t, netip.AddrPortFrom(waypoint6, 443)).talk(1000); err != nil {
		t.Error(err)
	}
}

func TestMappingsExpireAndAreRenewed(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.MappingLifetime = 300 * time.Millisecond
	server := n.echo(t, "10.2.0.1:443")
	w, stop := n.start(t)
	alice := peer("alice", client4)
	grant := mustMap(t, w, alice, server, 443)
	c := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	for range 10 { // renewed beyond its first life
		time.Sleep(50 * time.Millisecond)
		if again := mustMap(t, w, alice, server, 443); again.Port != grant.Port {
			t.Fatalf("renewed at another port: %+v", again)
		}
	}
	eventually(t, "the mapping is gone from the index", func() bool {
		s, err := w.Snapshot()
		return err == nil && s.Mappings == 0
	})
	n.waitEntry(t, "mapping-expired", func(e attribution.Entry) bool {
		return e.Event == attribution.MappingExpired && e.Member == "alice" && e.Server == server
	})
	if _, err := n.dial(t, netip.AddrPortFrom(waypoint4, 443)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("after expiry: %v", err)
	}
	if err := c.talk(1000); err != nil {
		t.Errorf("a connection of an expired mapping: %v", err)
	}
	// Also without an agent.
	mustMap(t, w, alice, server, 443)
	stop()
	eventually(t, "the mapping is gone from the kernel", func() bool {
		_, err := n.dial(t, netip.AddrPortFrom(waypoint4, 443))
		return errors.Is(err, unix.ECONNREFUSED)
	})
}

// A reload of the host's firewall flushes all tables. Ours comes back with its mappings.
func TestFirewallReload(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	n.waypoint.Output(t, "nft", "flush", "ruleset")
	// At once when somebody asks …
	mustMap(t, w, peer("bob", client4), server, 444)
	n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	n.waypoint.Output(t, "nft", "flush", "ruleset")
	// … and soon by itself.
	eventually(t, "the table is back", func() bool {
		_, err := n.dial(t, netip.AddrPortFrom(waypoint4, 444))
		return err == nil
	})
}

// A listing of all tables that nft has saved can be loaded again. In-band SYNs, for which nft has no words, reach their
// servers soon after that: while the agent runs, and after its start.
func TestListingIsLoaded(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _, stop, grant := startInBand(t, mode)
			server := p.echo(t, "10.2.0.1:443")
			if got := p.probe(t, p.syn(server, grant)); got != byServer {
				t.Fatalf("before: %s", got)
			}
			load := func() {
				t.Helper()
				p.waypoint.Output(t, "sh", "-ec", `(echo flush ruleset; nft list ruleset) >"$0"; nft -f "$0"`, filepath.Join(t.TempDir(), "saved.nft"))
			}
			load()
			eventually(t, "in-band SYNs reach the server", func() bool { return p.probe(t, p.syn(server, grant)) == byServer })

			stop()
			load()
			w, _ := p.start(t)
			w.SessionUp(overSession("alice", client4, 2))
			grant = p.granted(t, w, 2)
			if got := p.probe(t, p.syn(server, grant)); got != byServer {
				t.Errorf("after a start: %s", got)
			}
		})
	}
}

func TestServerBecomesOwnAddress(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.77:443"), 443)
	mustMap(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.78:443"), 444)
	n.waypoint.Output(t, "ip", "address", "add", "10.2.0.77/24", "dev", "eth1")
	eventually(t, "the mapping is removed", func() bool {
		list, err := w.Mappings()
		return err == nil && len(list) == 1 && list[0].Server.Addr() == netip.MustParseAddr("10.2.0.78")
	})
	if got := refusal(t, w, peer("alice", client4), netip.MustParseAddrPort("10.2.0.77:443")); got != wire.DestinationForbidden {
		t.Errorf("refused by %v", got)
	}
	n.waitEntry(t, "mapping-removed", func(e attribution.Entry) bool { return e.Event == attribution.MappingRemoved })
}

// After `dcol down` everything is as before, also if the agent was killed.
func TestCleanUpLeavesNoTrace(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	n.waypoint.Must(t, func() error { return netstate.SetSysctl("net/ipv4/conf/all/accept_redirects", "0") })
	trace := func() string {
		return n.waypoint.Output(t, "sh", "-c", "nft list ruleset; sysctl -a 2>/dev/null | "+
			"grep -E '^net.(ipv[46].*(forward|accept_ra |redirects|rp_filter)|netfilter.nf_conntrack_(acct|events|max))'; ip -o -4 address; ip -o -6 address show scope global; ip route; tc qdisc show; tc filter show dev eth0 ingress")
	}
	before := trace()
	if !strings.Contains(before, "net.ipv4.ip_forward = 0") || !strings.Contains(before, "accept_ra = 1") {
		t.Fatalf("the test does not see what it must:\n%s", before)
	}
	w, stop := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	c := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	if trace() == before {
		t.Fatal("the test sees no change")
	}
	stop()
	for range 2 {
		n.cleanUp(t)
		if after := trace(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		if _, err := os.Stat(n.config.Record); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the record is left: %v", err)
		}
	}
	if list := n.waypoint.Output(t, "conntrack", "-L", "-m", "0x80000000/0xf0000000"); !strings.Contains(list, "0 flow entries") {
		t.Errorf("left in conntrack: %s", list)
	}
	if err := c.talk(10); err == nil {
		t.Error("the connection goes on")
	}
}
