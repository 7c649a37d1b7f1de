package waypoint

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Other programs' bits of packet and connection marks stay unchanged with every kind of detour: those of mwan3,
// Kubernetes and Tailscale.
func TestForeignMarksStay(t *testing.T) {
	t.Parallel()
	const packet, connection = 0x00424100, 0x00801200
	n := newNetwork(t)
	n.config.InBand = InBandAuthenticated
	n.joinTunnel(t)
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	if err := w.SetTunnelInterfaces([]string{tunnelName}); err != nil {
		t.Fatal(err)
	}
	// One program sets its bits before our rules, another checks them after our rules. What each does to later
	// packets of the same connection does not matter here.
	n.waypoint.Output(t, "nft", fmt.Sprintf(`
		add table inet foreign
		add chain inet foreign before { type filter hook prerouting priority -150; }
		add rule inet foreign before meta l4proto tcp ct state new meta mark set meta mark or %[1]d ct mark set ct mark or %[2]d
		add chain inet foreign behind { type filter hook forward priority 10; }
		add rule inet foreign behind tcp flags & (syn | ack) == syn meta mark == %[1]d ct mark & 0x00ffff00 == %[2]d counter
	`, packet, connection))
	counted := func() string {
		_, list, _ := strings.Cut(n.waypoint.Output(t, "nft", "list", "chain", "inet", "foreign", "behind"), "counter packets ")
		count, _, _ := strings.Cut(list, " ")
		return count
	}
	admit(t, w, time.Minute)
	w.SessionUp(overSession("alice", client4, 1))
	mapping := mustMap(t, w, overSession("alice", client4, 1), server, 443)
	p := newProber(t, n)
	grant := p.granted(t, w, 1)

	n.mustDial(t, netip.AddrPortFrom(waypoint4, mapping.Port))
	if got := counted(); got != "1" {
		t.Errorf("mapped: %s packets with these marks", got)
	}
	if got := p.probe(t, p.syn(server, grant)); got != byServer {
		t.Fatal(got)
	}
	if got := counted(); got != "2" {
		t.Errorf("in-band: %s packets with these marks", got)
	}
	if _, err := n.from(t, tunnel4, server); err != nil {
		t.Fatal(err)
	}
	if got := counted(); got != "3" {
		t.Errorf("by a tunnel: %s packets with these marks", got)
	}
	for kind, mark := range map[string]string{"mapped": "0x80801201", "in-band": "0x90801201", "by a tunnel": "0xa0801201"} {
		if list := n.waypoint.Output(t, "conntrack", "-L", "-m", mark); strings.Contains(list, " 0 flow entries") {
			t.Errorf("%s: no connection has the mark %s", kind, mark)
		}
	}
}
