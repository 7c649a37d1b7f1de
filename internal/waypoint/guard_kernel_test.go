package waypoint

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// SYNs that the authenticator rejects reach no server through a mapping either: not at the port at which a member
// has in-band detours, whatever options the SYN has, and not at the mapping's own port if the SYN names a server.
func TestMappingDoesNotUndoTheAuthenticator(t *testing.T) {
	t.Parallel()
	p, w, _, grant := startInBand(t, InBandAuthenticated)
	server := p.echo(t, "10.2.0.1:443")
	alice := overSession("alice", client4, 1)
	mapping := mustMap(t, w, alice, server, 443)
	if mapping.Port == 443 {
		t.Error("the mapping is at the server's port, where in-band SYNs come to")
	}
	wrong := grant
	wrong.Key = make([]byte, len(inband.Key{}))
	another := []byte{254, 8, 0xf9, 0x89, 1, 2, 3, 4}
	for what, forged := range map[string]struct {
		options []byte
		ports   []uint16
	}{
		"ours":                       {naming(server.Addr()), []uint16{443, mapping.Port}},
		"another's before ours":      {append(another, naming(server.Addr())...), []uint16{443, mapping.Port}},
		"one without an id and ours": {append([]byte{254, 2}, naming(server.Addr())...), []uint16{443, mapping.Port}},
		// These name no server. A mapping is by address, and takes them at its own port.
		"ours, cut off": {naming(server.Addr())[:6], []uint16{443}},
		"none":          {nil, []uint16{443}},
	} {
		for _, port := range forged.ports {
			s := p.syn(server, wrong)
			s.dst, s.options = netip.AddrPortFrom(waypoint4, port), forged.options
			p.probe(t, s) // the answer comes after the server got the SYN
			if got := p.server.all(func(x seenPacket) bool { return x.seq == s.seq }); len(got) > 0 {
				t.Errorf("options: %s, to port %d: a forged SYN reaches the server", what, port)
			}
		}
	}
	for _, e := range p.entries(t) {
		if e.Event == attribution.FlowOpened {
			t.Errorf("logged as %s's: %+v", e.Member, e)
		}
	}
	if got := p.probe(t, p.syn(server, grant)); got != byServer {
		t.Errorf("in-band: %s", got)
	}
	if err := p.mustDial(t, netip.AddrPortFrom(waypoint4, mapping.Port)).talk(1000); err != nil {
		t.Errorf("mapped: %v", err)
	}
}

// A mapping made before the authenticator was switched on ends, as its port would accept any SYN. Its connections
// continue, and the next mapping gets another port, also before the member requests in-band detours.
func TestMappingMakesRoomForTheAuthenticator(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	w, stop := n.start(t)
	alice := overSession("alice", client4, 1)
	w.SessionUp(alice)
	if before := mustMap(t, w, alice, server, 443); before.Port != 443 {
		t.Fatalf("without in-band detours: %+v", before)
	}
	open := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	stop()
	n.config.InBand = InBandAuthenticated
	w, _ = n.start(t)
	if _, err := n.dial(t, netip.AddrPortFrom(waypoint4, 443)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("by the mapping from before: %v", err)
	}
	w.SessionUp(alice)
	after := mustMap(t, w, alice, server, 443)
	if after.Port == 443 {
		t.Fatalf("with in-band detours: %+v", after)
	}
	mustInBand(t, w, alice)
	if again := mustMap(t, w, alice, server, 443); again.Port != after.Port {
		t.Errorf("asked again: port %d, not %d", again.Port, after.Port)
	}
	if err := open.talk(1000); err != nil {
		t.Errorf("the connection from before: %v", err)
	}
	if err := n.mustDial(t, netip.AddrPortFrom(waypoint4, after.Port)).talk(1000); err != nil {
		t.Errorf("at the new port: %v", err)
	}
	// In-band detours are of IPv4 alone.
	server6 := n.echo(t, "[fd02::1]:443")
	if six, refusal := w.Map(t.Context(), overSession("alice", client6, 2), wire.MapRequest{Server: server6, Proposed: 443}); refusal != nil || six.Port != 443 {
		t.Errorf("IPv6: %+v, %v", six, refusal)
	}
}

// Whatever of its table is removed, the waypoint restores.
func TestTableRestored(t *testing.T) {
	for _, command := range []string{"flush ruleset", "delete table inet dcol", "flush table inet dcol", "flush chain inet dcol forwarded"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			server := n.echo(t, "10.2.0.1:443")
			w, _ := n.start(t)
			grant := mustMap(t, w, peer("alice", client4), server, 443)
			rules := func() int { return strings.Count(n.waypoint.Output(t, "nft", "-s", "list", "ruleset"), "\n") }
			before := rules()
			n.waypoint.Output(t, "nft", command)
			eventually(t, "the table is restored", func() bool { return rules() == before })
			if err := n.mustDial(t, netip.AddrPortFrom(waypoint4, grant.Port)).talk(1000); err != nil {
				t.Error(err)
			}
		})
	}
}
