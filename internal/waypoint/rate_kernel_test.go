package waypoint

import (
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// A member that scans opens no more connections than its rate and one burst allow, counted over all kinds of
// detours, also after the agent was killed. The excess is dropped: an honest connection opens with its next SYN,
// and other members notice nothing.
func TestRateOfNewConnections(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const rate, burst = 5, 20
	n.config.RatePerMember, n.config.InBand = rate, InBandAuthenticated
	n.joinTunnel(t)
	server := n.echo(t, "10.2.0.1:443")
	w, kill := n.start(t)
	if err := w.SetTunnelInterfaces([]string{tunnelName}); err != nil {
		t.Fatal(err)
	}
	admit(t, w, time.Minute)
	alices := mustMap(t, w, peer("alice", client4), server, 8001)
	bobs := mustMap(t, w, peer("bob", client4), server, 8002)
	w.SessionUp(overSession("alice", client4, 1))
	p := newProber(t, n)
	grant := p.granted(t, w, 1)

	began, sent := time.Now(), make(map[uint32]bool)
	arrived := func() int {
		return len(p.server.all(func(x seenPacket) bool { return x.flags == packet.SYN && sent[x.seq] }))
	}
	scan := func(what string, times int) {
		t.Helper()
		for range times {
			s := p.syn(server, grant)
			s.options, s.dst = nil, netip.AddrPortFrom(waypoint4, alices.Port)
			sent[s.seq] = true
			p.client.send(t, s)
			in := p.syn(server, grant)
			sent[in.seq] = true
			p.client.send(t, in)
		}
		if most := burst + rate*int(time.Since(began).Seconds()+1) + 1; arrived() > most {
			t.Errorf("%s: %d of %d SYNs reach the server, at most %d may", what, arrived(), len(sent), most)
		}
	}
	scan("with the agent", 300)
	if got := arrived(); got < burst {
		t.Errorf("%d SYNs reach the server, and %d may at once", got, burst)
	}
	bob := p.syn(server, grant)
	bob.options, bob.dst = nil, netip.AddrPortFrom(waypoint4, bobs.Port)
	p.client.send(t, bob)
	eventually(t, "bob's first SYN reaches the server", func() bool {
		return len(p.server.all(func(x seenPacket) bool { return x.flags == packet.SYN && x.seq == bob.seq })) > 0
	})
	if c := n.mustDial(t, netip.AddrPortFrom(waypoint4, bobs.Port)); c.seen.Addr() != egress4 {
		t.Errorf("bob: the server sees %v", c.seen)
	}
	// Alice's own next connections wait for their turn, by whatever kind.
	if _, err := n.dial(t, netip.AddrPortFrom(waypoint4, alices.Port)); err != nil {
		t.Errorf("an honest connection by a mapping: %v", err)
	}
	scan("again", 100)
	if _, err := n.from(t, tunnel4, server); err != nil {
		t.Errorf("an honest connection by a tunnel: %v", err)
	}
	opened := 0
	for _, e := range n.entries(t) {
		if e.Event == attribution.FlowOpened {
			opened++
		}
	}
	if opened > arrived()+10 {
		t.Errorf("%d connections are logged, and %d SYNs reached the server", opened, arrived())
	}
	kill()
	scan("without an agent", 300)
}
