package waypoint

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
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
	w.SessionUp(overSession("alice", client4, 1))
	p, grant = newProber(t, n), mustInBand(t, w, overSession("alice", client4, 1))
	return p, w, stop, grant
}

// Which SYNs reach the server that they name. All others are answered as if the waypoint did not know the option:
// by a reset, as nothing listens here.
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
					continue // does not apply where nothing is signed
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
				s.tsval += 1000 // as the client's clock advances
				s = s.signed(server.Addr(), grant)
				p.client.send(t, s)
				eventually(t, "the SYN arrives", func() bool { return len(p.arrived(s)) > i })
			}
			for _, got := range p.arrived(s) {
				if got.src.Addr() != egress4 || got.dst != server || bytes.Contains(got.options, []byte{254}) || bytes.Contains(got.options, []byte{0xdc, 0x01}) {
					t.Errorf("arrived %+v", got)
				}
			}
			// conntrack at the waypoint has no other marked entry.
			flows := p.waypoint.Output(t, "conntrack", "-L", "-p", "tcp", "-m", "0x90000001")
			if !strings.Contains(flows, "1 flow entries") {
				t.Errorf("conntrack:\n%s", flows)
			}
		})
	}
}

// silence makes the server's host drop its answers, so that SYNs are repeated.
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
		return errors.Join(ct.Delete(netstate.MarkMatch{Value: 0x8000_0000, Mask: 0x8000_0000}), ct.Close())
	})
}

// A service of the waypoint, and a mapping, at the server's port work as before: only SYNs that name a server,
// with a valid authenticator, go to it.
func TestInBandBesideAServiceAndAMapping(t *testing.T) {
	for name, mode := range inBandModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, w, _, grant := startInBand(t, mode)
			web, tls := p.echo(t, "10.2.0.1:80"), p.echo(t, "10.2.0.1:443")
			mapped := p.echo(t, "10.2.0.1:8443")
			p.waypoint.Listen(t, "10.1.0.2:80")
			mapping := mustMap(t, w, peer("alice", client4), mapped, 443)
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
			s.dst = netip.AddrPortFrom(waypoint4, mapping.Port) // 443 only where no authenticator is required
			if got := p.probe(t, s); got == byNobody || len(p.server.all(func(x seenPacket) bool { return x.seq == s.seq && x.dst == mapped })) != 1 {
				t.Errorf("unnamed, at the mapping's port: %s", got)
			}
		})
	}
}
