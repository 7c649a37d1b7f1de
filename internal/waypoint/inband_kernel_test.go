package waypoint

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/bpf/inband"
	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

var inBandModes = map[string]InBandMode{"open": InBandOpen, "authenticated": InBandAuthenticated}

// startInBand is a waypoint where alice has a session and in-band detours.
func startInBand(t *testing.T, mode InBandMode) (p *prober, w *Waypoint, stop func(), grant wire.TunnelGrant) {
	t.Helper()
	n := newNetwork(t)
	n.config.InBand = mode
	n.config.Allow = append(n.config.Allow, netip.MustParsePrefix("10.0.0.0/14")) // the waypoint's own networks too
	w, stop = n.start(t)
	if ok, why := w.OffersInBand(); !ok {
		t.Skip(why)
	}
	w.SessionUp(session("alice", client4, 1))
	p, grant = newProber(t, n), mustInBand(t, w, session("alice", client4, 1))
	return p, w, stop, grant
}

// Which SYNs reach the server that they name. All others are answered as if the waypoint had never
// heard of the option: here nobody listens, so by a reset.
func TestInBandSYNs(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, w, _, grant := startInBand(t, mode)
			server := p.echo(t, "10.2.0.1:443")
			for _, port := range []string{"80", "5201", "25"} {
				p.echo(t, "10.2.0.1:"+port)
			}
			addr := netip.MustParseAddr
			ours := naming(server.Addr())
			other := inband.Key{1, 2, 3}
			wrongKey := grant
			wrongKey.Key = other[:]
			options := func(b ...byte) func(synPacket) synPacket {
				return func(s synPacket) synPacket { s.options = b; return s }
			}
			names := func(server string) func(synPacket) synPacket {
				return func(s synPacket) synPacket { s.options = naming(addr(server)); return s.signed(addr(server), grant) }
			}
			to := func(port uint16) func(synPacket) synPacket {
				return func(s synPacket) synPacket {
					s.dst = netip.AddrPortFrom(waypoint4, port)
					return s.signed(server.Addr(), grant)
				}
			}
			onlyOpen := byNobody
			if mode == InBandOpen {
				onlyOpen = byServer
			}
			for what, c := range map[string]struct {
				change func(synPacket) synPacket
				want   string
			}{
				"as it should be":             {func(s synPacket) synPacket { return s }, byServer},
				"another port":                {to(80), byServer},
				"a port above 1024":           {to(5201), byServer},
				"a forbidden port":            {to(25), byNobody},
				"no option":                   {options(), byNobody},
				"cut off after its id":        {options(254, 4, 0xdc, 0x01), byNobody},
				"two bytes short":             {options(append([]byte{254, 6}, ours[2:6]...)...), byNobody},
				"longer than the header":      {options(append([]byte{254, 10}, ours[2:]...)...), byNobody},
				"two bytes long":              {options(append(append([]byte{254, 10}, ours[2:]...), 0, 0)...), byNobody},
				"length zero":                 {options(append([]byte{254, 0}, ours[2:]...)...), byNobody},
				"another experiment's id":     {options(append([]byte{254, 8, 0xf9, 0x89}, ours[4:]...)...), byNobody},
				"another option kind":         {options(append([]byte{253}, ours[1:]...)...), byNobody},
				"twice":                       {options(append(bytes.Clone(ours), naming(addr("10.2.0.9"))...)...), onlyOpen},
				"this host's address":         {names("10.2.0.2"), byNobody},
				"the address it was sent to":  {names("10.1.0.2"), byNobody},
				"loopback":                    {names("127.0.0.1"), byNobody},
				"a private address":           {names("192.168.0.1"), byNobody},
				"multicast":                   {names("224.0.0.1"), byNobody},
				"nothing":                     {names("0.0.0.0"), byNobody},
				"everybody":                   {names("255.255.255.255"), byNobody},
				"a stranger's address":        {func(s synPacket) synPacket { s.src = netip.AddrPortFrom(addr("10.1.0.11"), s.src.Port()); return s }, byNobody},
				"a neighbour without the key": {func(s synPacket) synPacket { return s.signed(server.Addr(), wrongKey) }, onlyOpen},
				"another server than signed":  {func(s synPacket) synPacket { s.options = naming(addr("10.2.0.9")); return s }, onlyOpen},
			} {
				s := c.change(p.syn(server, grant))
				if onlyOpen == byServer && what == "another server than signed" {
					continue // where nothing is signed, there is no such thing
				}
				if got := p.probe(t, s); got != c.want {
					t.Errorf("%s: answered by %s, want %s", what, got, c.want)
				}
			}
			if s, err := w.Snapshot(); err != nil || s.InBand != 1 {
				t.Errorf("snapshot %+v, %v", s, err)
			} else if mode == InBandAuthenticated && (s.SYNs == nil || s.SYNs.Accepted == 0 || s.SYNs.BadAuthenticator == 0 ||
				s.SYNs.UnknownAddress == 0 || s.SYNs.Malformed == 0) {
				t.Errorf("SYNs %+v", s.SYNs)
			}
			if left := p.waypoint.Output(t, "nft", "list", "chain", "inet", "dcol", "inband"); !strings.Contains(left, "dnat") {
				t.Error(left)
			}
		})
	}
}

// The server sees an ordinary SYN: from the waypoint, without the option, also when it is repeated.
func TestInBandServerSeesAPlainSYN(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _, _, grant := startInBand(t, mode)
			silence(t, p.network)
			server := netip.MustParseAddrPort("10.2.0.1:443")
			s := p.syn(server, grant)
			for i := range 3 {
				s.tsval += 1000 // as the client's clock goes on
				s = s.signed(server.Addr(), grant)
				p.client.send(t, s)
				eventually(t, "the SYN arrives", func() bool { return len(p.arrived(s)) > i })
			}
			for _, got := range p.arrived(s) {
				if got.src.Addr() != egress4 || got.dst != server || bytes.Contains(got.options, []byte{254}) || bytes.Contains(got.options, []byte{0xdc, 0x01}) {
					t.Errorf("arrived %+v", got)
				}
			}
			// Nor is anything else of the packet left marked at the waypoint.
			flows := p.waypoint.Output(t, "conntrack", "-L", "-p", "tcp", "-m", "0xdc020001")
			if !strings.Contains(flows, "1 flow entries") {
				t.Errorf("conntrack:\n%s", flows)
			}
		})
	}
}

// silence makes the server's host say nothing, so that SYNs are repeated.
func silence(t *testing.T, n *network) {
	t.Helper()
	n.server.Output(t, "nft", "add table ip quiet; add chain ip quiet out { type filter hook output priority 0; policy drop; }")
}

func TestReplayedSYNsAreRefused(t *testing.T) {
	t.Parallel()
	p, w, _, grant := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	s := p.syn(server, grant)
	if got := p.probe(t, s); got != byServer {
		t.Fatalf("answered by %s", got)
	}
	// Once conntrack has forgotten the connection, somebody who overheard it sends its SYN again.
	p.forgetFlows(t)
	if got := p.probe(t, s); got != byNobody {
		t.Errorf("replayed: answered by %s", got)
	}
	if s, err := w.Snapshot(); err != nil || s.SYNs.Replayed != 1 || s.SYNs.Accepted != 1 {
		t.Errorf("snapshot %+v, %v", s.SYNs, err)
	}
}

func (n *network) forgetFlows(t *testing.T) {
	t.Helper()
	n.waypoint.Must(t, func() error {
		ct, err := netstate.OpenConntrack()
		if err != nil {
			return err
		}
		return errors.Join(ct.Delete(netstate.MarkMatch{Value: 0xdc00_0000, Mask: 0xfff8_0000}), ct.Close())
	})
}

// A service of the waypoint, and a mapping, at the server's port go on as before: only SYNs that name
// a server, and rightly, go there.
func TestInBandBesideAServiceAndAMapping(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, w, _, grant := startInBand(t, mode)
			web, tls := p.echo(t, "10.2.0.1:80"), p.echo(t, "10.2.0.1:443")
			mapped := p.echo(t, "10.2.0.1:8443")
			p.waypoint.Listen(t, "10.1.0.2:80")
			mustMap(t, w, peer("alice", client4), mapped, 443)
			plain := func(s synPacket) synPacket { s.options = nil; return s }
			wrong := func(s synPacket) synPacket { s.options[1] = 6; return s }

			if got := p.probe(t, p.syn(web, grant)); got != byServer {
				t.Errorf("named, at the service's port: %s", got)
			}
			if got := p.probe(t, plain(p.syn(web, grant))); got != byWaypoint {
				t.Errorf("unnamed, at the service's port: %s", got)
			}
			if got := p.probe(t, wrong(p.syn(web, grant))); got != byWaypoint {
				t.Errorf("wrongly named, at the service's port: %s", got)
			}
			if got := p.probe(t, p.syn(tls, grant)); got != byServer {
				t.Errorf("named, at the mapping's port: %s", got)
			}
			s := plain(p.syn(tls, grant))
			if got := p.probe(t, s); got == byNobody || len(p.server.all(func(x seenPacket) bool { return x.seq == s.seq && x.dst == mapped })) != 1 {
				t.Errorf("unnamed, at the mapping's port: %s", got)
			}
		})
	}
}

// The last session's end closes the door at once, but throws nobody out.
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
			w.SessionUp(session("alice", client4, 2))
			again := p.granted(t, w, 2)
			w.SessionDown(session("alice", client4, 1))
			if got := p.probe(t, p.syn(server, again)); got != byServer {
				t.Errorf("with one session left: %s", got)
			}
			w.SessionDown(session("alice", client4, 2))
			for _, g := range []wire.TunnelGrant{grant, again} {
				if got := p.probe(t, p.syn(server, g)); got != byNobody {
					t.Errorf("without a session: %s", got)
				}
			}
			if n := strings.Count(p.waypoint.Output(t, "conntrack", "-L", "-m", "0xdc020001"), "dport=443"); n < 2 {
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

// Whoever has another address is no longer at the old one: its connections from there end for the
// server too, those by other kinds as well, and nobody else's do.
func TestMovedMember(t *testing.T) {
	t.Parallel()
	p, w, _, grant := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	w.SessionUp(session("bob", client4, 7))
	listener := p.network.server.Listen(t, "10.2.0.1:9000")
	mustMap(t, w, session("alice", client4, 1), netip.MustParseAddrPort("10.2.0.1:9000"), 8001)
	mustMap(t, w, session("bob", client4, 7), server, 8002)
	dial, err := p.network.client.Dial(t.Context(), netip.AddrPortFrom(waypoint4, 8001))
	if err != nil {
		t.Fatal(err)
	}
	defer dial.Close()
	alices, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer alices.Close()
	bobs := p.mustDial(t, netip.AddrPortFrom(waypoint4, 8002))
	inBand := p.syn(server, grant)
	if got := p.probe(t, inBand); got != byServer {
		t.Fatal(got)
	}
	moved := netip.MustParseAddr("10.1.0.11")
	w.SessionMoved(session("alice", client4, 1), session("alice", moved, 1))

	if list := p.waypoint.Output(t, "conntrack", "-L", "-m", "0xdc000001/0xfff8ffff"); !strings.Contains(list, " 0 flow entries") {
		t.Errorf("left of alice:\n%s", list)
	}
	if err := bobs.talk(1000); err != nil {
		t.Errorf("bob's connection: %v", err)
	}
	// The server of alice's connection notices as soon as it says something.
	_ = alices.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = alices.Write([]byte("x"))
	if _, err := alices.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("alice's server: %v", err)
	}
	if got := p.probe(t, p.syn(server, grant)); got != byNobody {
		t.Errorf("in-band from the old address: %s", got)
	}
	again := mustInBand(t, w, session("alice", moved, 1))
	s := p.syn(server, again)
	s.src = netip.AddrPortFrom(moved, s.src.Port())
	if got := p.probe(t, s.signed(server.Addr(), again)); got != byServer {
		t.Errorf("in-band from the new address: %s", got)
	}
	if refusal := inBandRefusal(t, w, session("alice", client4, 1)); refusal.Code != wire.Busy {
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

// Two members behind one address are told apart by their keys, and a port that the NAT rewrote does
// no harm.
func TestMembersBehindOneAddress(t *testing.T) {
	t.Parallel()
	p, w, _, alices := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	w.SessionUp(session("bob", client4, 2))
	bobs, refusal := w.InBand(t.Context(), session("bob", client4, 2), wire.TunnelRequest{Kind: wire.InBand, Local: netip.MustParseAddr("192.168.1.5")})
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
	// A port that nobody rewrites is part of what alice signs.
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
			w.SessionUp(session("alice", client4, 1))
			if got := p.probe(t, p.syn(server, p.granted(t, w, 1))); got != byServer {
				t.Errorf("granted by the next agent: %s", got)
			}
			w.SessionDown(session("alice", client4, 1))
			if got := p.probe(t, p.syn(server, grant)); got != byNobody {
				t.Errorf("after the session: %s", got)
			}
			stop()
			// Switched off, nothing of it is left.
			p.config.InBand = InBandOff
			p.start(t)
			if left := p.waypoint.Output(t, "tc", "qdisc", "show"); strings.Contains(left, "clsact") {
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
	if err := w.ask(func() { w.attachDue = time.Time{} }); err != nil { // the wait is over
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
	w.SessionUp(session("alice", from, 5))
	grant := mustInBand(t, w, session("alice", from, 5))
	eventually(t, "in-band over the new interface", func() bool {
		s := p.syn(server, grant)
		s.src, s.dst = netip.AddrPortFrom(from, s.src.Port()), netip.MustParseAddrPort("10.3.0.2:443")
		return p.probe(t, s.signed(server.Addr(), grant)) == byServer
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
			if list := p.waypoint.Output(t, "conntrack", "-L", "-m", "0xdc020001"); !strings.Contains(list, " 0 flow entries") {
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
	w.SessionUp(session("alice", client4, 1))
	mustInBand(t, w, session("alice", client4, 1))
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
	// The bounding set is of this thread, and so is what it opens.
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
		w.SessionUp(session("alice", client4, 1))
		if refusal := inBandRefusal(t, w, session("alice", client4, 1)); refusal.Code != wire.NotOffered {
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
