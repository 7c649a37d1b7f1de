package waypoint

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// After the last session's end no new connection is admitted, but open ones continue.
func TestInBandEndsWithTheSession(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, w, _, grant := startInBand(t, mode)
			server := p.echo(t, "10.2.0.1:443")
			open := p.syn(server, grant)
			if got := p.probe(t, open); got != byServer {
				t.Fatal(got)
			}
			w.SessionUp(overSession("alice", client4, 2))
			again := p.granted(t, w, 2)
			w.SessionDown(overSession("alice", client4, 1))
			if got := p.probe(t, p.syn(server, again)); got != byServer {
				t.Errorf("with one session left: %s", got)
			}
			w.SessionDown(overSession("alice", client4, 2))
			for _, g := range []wire.TunnelGrant{grant, again} {
				if got := p.probe(t, p.syn(server, g)); got != byNobody {
					t.Errorf("without a session: %s", got)
				}
			}
			if n := strings.Count(p.waypoint.Output(t, "conntrack", "-L", "-m", "0x90000001"), "dport=443"); n < 2 {
				t.Errorf("%d connections are left", n)
			}
			ended := p.waitEntry(t, "admission-ended", func(e attribution.Entry) bool { return e.Event == attribution.AdmissionEnded })
			if ended.Member != "alice" || ended.Kind != "in-band" || ended.Client != client4 {
				t.Errorf("%+v", ended)
			}
			flow := p.waitEntry(t, "flow-opened", func(e attribution.Entry) bool { return e.Event == attribution.FlowOpened })
			if flow.Member != "alice" || flow.Kind != "in-band" || flow.Client != client4 || flow.ClientPort != open.src.Port() ||
				flow.Port != 443 || flow.Server != server || flow.Egress.Addr() != egress4 {
				t.Errorf("%+v", flow)
			}
		})
	}
}

// A member that has moved is no longer at its old address: its connections from there end for the server too, by
// other kinds of detours as well, and no other member's do.
func TestMovedMember(t *testing.T) {
	t.Parallel()
	p, w, _, grant := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	w.SessionUp(overSession("bob", client4, 7))
	listener := p.network.server.Listen(t, "10.2.0.1:9000")
	alicesMapping := mustMap(t, w, overSession("alice", client4, 1), netip.MustParseAddrPort("10.2.0.1:9000"), 8001)
	bobsMapping := mustMap(t, w, overSession("bob", client4, 7), server, 8002)
	dial, err := p.network.client.Dial(t.Context(), netip.AddrPortFrom(waypoint4, alicesMapping.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer dial.Close()
	alices, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer alices.Close()
	bobs := p.mustDial(t, netip.AddrPortFrom(waypoint4, bobsMapping.Port))
	inBand := p.syn(server, grant)
	if got := p.probe(t, inBand); got != byServer {
		t.Fatal(got)
	}
	moved := netip.MustParseAddr("10.1.0.11")
	w.SessionMoved(overSession("alice", client4, 1), overSession("alice", moved, 1))

	if list := p.waypoint.Output(t, "conntrack", "-L", "-m", "0x80000001/0x9f0000ff"); !strings.Contains(list, " 0 flow entries") {
		t.Errorf("left of alice:\n%s", list)
	}
	if err := bobs.talk(1000); err != nil {
		t.Errorf("bob's connection: %v", err)
	}
	// The server of alice's connection notices as soon as it sends something.
	_ = alices.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = alices.Write([]byte("x"))
	if _, err := alices.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("alice's server: %v", err)
	}
	if got := p.probe(t, p.syn(server, grant)); got != byNobody {
		t.Errorf("in-band from the old address: %s", got)
	}
	again := mustInBand(t, w, overSession("alice", moved, 1))
	s := p.syn(server, again)
	s.src = netip.AddrPortFrom(moved, s.src.Port())
	if got := p.probe(t, s.signed(server.Addr(), again)); got != byServer {
		t.Errorf("in-band from the new address: %s", got)
	}
	if refusal := inBandRefusal(t, w, overSession("alice", client4, 1)); refusal.Code != wire.Busy {
		t.Errorf("asked late from the old address: %v", refusal)
	}
}

// A new key takes the place of the old one without a moment in between.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	p, w, _, first := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	second := p.granted(t, w, 1)
	if bytes.Equal(first.Key, second.Key) {
		t.Fatal("the same key again")
	}
	for _, g := range []wire.TunnelGrant{first, second} {
		if got := p.probe(t, p.syn(server, g)); got != byServer {
			t.Errorf("either key is good: %s", got)
		}
	}
	third := p.granted(t, w, 1)
	for i, want := range []string{byNobody, byServer, byServer} {
		if got := p.probe(t, p.syn(server, []wire.TunnelGrant{first, second, third}[i])); got != want {
			t.Errorf("key %d: %s, want %s", i, got, want)
		}
	}
}

// Two members behind one address are distinguished by their keys, and a port rewritten by the NAT does no harm.
func TestMembersBehindOneAddress(t *testing.T) {
	t.Parallel()
	p, w, _, alices := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	w.SessionUp(overSession("bob", client4, 2))
	bobs, refusal := w.InBand(t.Context(), overSession("bob", client4, 2), wire.TunnelRequest{Kind: wire.InBand, Local: netip.MustParseAddr("192.168.1.5")})
	if refusal != nil || bobs.ClientPort || bobs.Client != client4 {
		t.Fatalf("grant %+v, %v", bobs, refusal)
	}
	for member, g := range map[string]wire.TunnelGrant{"alice": alices, "bob": bobs} {
		s := p.syn(server, g)
		if member == "bob" {
			s.src = netip.AddrPortFrom(client4, s.src.Port()+10_000) // after it was signed
		}
		if got := p.probe(t, s); got != byServer {
			t.Errorf("%s: %s", member, got)
		}
		flow := p.waitEntry(t, "flow-opened", func(e attribution.Entry) bool { return e.ClientPort == s.src.Port() })
		if flow.Member != member {
			t.Errorf("attributed to %s, want %s", flow.Member, member)
		}
	}
	// Without such rewriting, alice signs the port too.
	s := p.syn(server, alices)
	s.src = netip.AddrPortFrom(client4, s.src.Port()+10_000)
	if got := p.probe(t, s); got != byNobody {
		t.Errorf("from another port than signed: %s", got)
	}
}

// An agent that is killed leaves all at work, and the next one takes it over.
func TestInBandWithoutAnAgent(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _, kill, grant := startInBand(t, mode)
			server := p.echo(t, "10.2.0.1:443")
			kill() // no session has ended before
			if got := p.probe(t, p.syn(server, grant)); got != byServer {
				t.Errorf("without an agent: %s", got)
			}
			w, stop := p.start(t)
			if got := p.probe(t, p.syn(server, grant)); got != byServer {
				t.Errorf("with the next agent: %s", got)
			}
			w.SessionUp(overSession("alice", client4, 1))
			if got := p.probe(t, p.syn(server, p.granted(t, w, 1))); got != byServer {
				t.Errorf("granted by the next agent: %s", got)
			}
			w.SessionDown(overSession("alice", client4, 1))
			if got := p.probe(t, p.syn(server, grant)); got != byNobody {
				t.Errorf("after the session: %s", got)
			}
			stop()
			// Once switched off, nothing of it is left.
			p.config.InBand = InBandOff
			p.start(t)
			if left := p.waypoint.Output(t, "tc", "filter", "show", "dev", "eth0", "ingress"); strings.Contains(left, "dcol-inband") {
				t.Errorf("left:\n%s", left)
			}
		})
	}
}

// Other programs remove the table and the filters: both come back.
func TestInBandIsPutBack(t *testing.T) {
	t.Parallel()
	p, w, _, grant := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	back := func(what string) {
		t.Helper()
		before := p.accepted(t, w)
		eventually(t, what, func() bool {
			// Not every one is answered: the kernel drops packets while a qdisc comes or goes.
			s := p.syn(server, grant)
			p.client.send(t, s)
			return len(p.arrived(s)) > 0 && p.accepted(t, w) > before
		})
	}
	p.waypoint.Output(t, "nft", "flush", "ruleset")
	back("the table is back")
	p.waypoint.Output(t, "tc", "qdisc", "delete", "dev", "eth0", "clsact")
	if err := w.ask(func() { w.loop.filters.due = time.Time{} }); err != nil { // the wait is over
		t.Fatal(err)
	}
	back("the filter is back")
}

// accepted counts the SYNs found authentic.
func (p *prober) accepted(t *testing.T, w *Waypoint) uint64 {
	t.Helper()
	s, err := w.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s.SYNs.Accepted
}

func TestInBandServerBecomesOwnAddress(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _, _, grant := startInBand(t, mode)
			p.network.server.Output(t, "ip", "address", "add", "10.2.0.7/24", "dev", "eth0")
			server := p.echo(t, "10.2.0.7:443")
			if got := p.probe(t, p.syn(server, grant)); got != byServer {
				t.Fatal(got)
			}
			p.waypoint.Output(t, "ip", "address", "add", "10.2.0.7/32", "dev", "lo")
			eventually(t, "it is forbidden", func() bool { return p.probe(t, p.syn(server, grant)) == byNobody })
		})
	}
}

// An interface that comes later is looked at as well.
func TestInBandOverANewInterface(t *testing.T) {
	t.Parallel()
	p, w, _, _ := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	p.join(t, "late", "10.3.0.1/24", "10.3.0.2/24")
	from := netip.MustParseAddr("10.3.0.1")
	w.SessionUp(overSession("alice", from, 5))
	grant := mustInBand(t, w, overSession("alice", from, 5))
	eventually(t, "in-band over the new interface", func() bool {
		s := p.syn(server, grant)
		s.src, s.dst = netip.AddrPortFrom(from, s.src.Port()), netip.MustParseAddrPort("10.3.0.2:443")
		s = s.signed(server.Addr(), grant)
		// Not probe: while the interface is being set up, a SYN may get no answer, and is sent again.
		p.client.send(t, s)
		time.Sleep(50 * time.Millisecond)
		return len(p.arrived(s)) > 0
	})
}

func TestExpelledFromInBand(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, w, _, grant := startInBand(t, mode)
			server := p.echo(t, "10.2.0.1:443")
			if got := p.probe(t, p.syn(server, grant)); got != byServer {
				t.Fatal(got)
			}
			if err := w.Expel("alice"); err != nil {
				t.Fatal(err)
			}
			if got := p.probe(t, p.syn(server, grant)); got != byNobody {
				t.Errorf("expelled: %s", got)
			}
			if list := p.waypoint.Output(t, "conntrack", "-L", "-m", "0x90000001"); !strings.Contains(list, " 0 flow entries") {
				t.Errorf("left:\n%s", list)
			}
		})
	}
}

func TestCleanUpAfterInBand(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	trace := func() string {
		return n.waypoint.Output(t, "sh", "-c", "nft list ruleset; tc qdisc show; tc filter show dev eth0 ingress; tc filter show dev eth1 ingress")
	}
	before := trace()
	n.config.InBand = InBandAuthenticated
	w, stop := n.start(t)
	if ok, why := w.OffersInBand(); !ok {
		t.Skip(why)
	}
	w.SessionUp(overSession("alice", client4, 1))
	mustInBand(t, w, overSession("alice", client4, 1))
	if during := trace(); during == before || !strings.Contains(during, "dcol-inband") {
		t.Fatalf("the test does not see what it must:\n%s", during)
	}
	stop()
	n.cleanUp(t)
	if after := trace(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Without eBPF there are no in-band detours rather than open ones; all else works.
func TestInBandNeedsItsAuthenticator(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.InBand = InBandAuthenticated
	server := n.echo(t, "10.2.0.1:443")
	// The bounding set applies to this thread, and to what it opens.
	err := n.waypoint.Do(func() error {
		for _, c := range []int{unix.CAP_BPF, unix.CAP_SYS_ADMIN} {
			if err := dropCapability(c); err != nil {
				return err
			}
		}
		w, err := Start(n.config, discard)
		if err != nil {
			return err
		}
		defer w.Close()
		if ok, why := w.OffersInBand(); ok || !strings.Contains(why, "CAP_BPF") {
			t.Errorf("offers %v: %s", ok, why)
		}
		w.SessionUp(overSession("alice", client4, 1))
		if refusal := inBandRefusal(t, w, overSession("alice", client4, 1)); refusal.Code != wire.NotOffered {
			t.Errorf("refused by %v", refusal)
		}
		mustMap(t, w, peer("alice", client4), server, 443)
		p := newProber(t, n)
		s := p.syn(server, wire.TunnelGrant{})
		s.dst = netip.AddrPortFrom(waypoint4, 80)
		if got := p.probe(t, s); got != byNobody {
			t.Errorf("without the authenticator: %s", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// dropCapability takes a capability from the calling thread.
func dropCapability(c int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[c/32].Effective &^= 1 << (c % 32)
	data[c/32].Permitted &^= 1 << (c % 32)
	return unix.Capset(&header, &data[0])
}
