package waypoint

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
)

// A connection over the quota is reset, so that a client's direct path simply continues.
func TestConnectionQuota(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.ConnectionsPerMember = 3
	server := n.echo(t, "10.2.0.1:443")
	server6 := n.echo(t, "[fd02::1]:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	mustMap(t, w, peer("alice", client6), server6, 443)
	mustMap(t, w, peer("bob", client4), server, 444)
	to := netip.AddrPortFrom(waypoint4, 443)
	first := n.mustDial(t, to)
	n.mustDial(t, to)
	n.mustDial(t, netip.AddrPortFrom(waypoint6, 443))
	for _, over := range []netip.AddrPort{to, netip.AddrPortFrom(waypoint6, 443)} {
		if _, err := n.dial(t, over); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("the fourth connection, to %v: %v", over, err)
		}
	}
	n.mustDial(t, netip.AddrPortFrom(waypoint4, 444)) // bob's own
	if err := first.talk(1000); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a closed one makes room", func() bool {
		_, err := n.dial(t, to)
		return err == nil
	})
}

// The limit counts both directions of all a member's connections. The bound is loose: the bucket holds what passes
// in a second, and the test must pass on a slow machine.
func TestBandwidthQuota(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	const rate = 1 << 20
	n.config.BandwidthPerMember = rate
	server := n.echo(t, "10.2.0.1:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("alice", client4), server, 443)
	c := n.mustDial(t, netip.AddrPortFrom(waypoint4, 443))
	const sent = 3 * rate // and as much comes back
	begin := time.Now()
	if err := c.talk(sent); err != nil {
		t.Fatal(err)
	}
	// 6 s worth of bytes less the bucket, of one and a tenth.
	if took := time.Since(begin); took < 3*time.Second {
		t.Errorf("%d bytes both ways took %v at %d bytes/s", sent, took, rate)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.MappingsPerMember = 2
	w, _ := n.start(t)
	alice := peer("alice", client4)
	addr := netip.MustParseAddrPort
	for server, want := range map[string]wire.Code{
		"127.0.0.1:443": wire.DestinationForbidden,
		"10.3.0.1:443":  wire.DestinationForbidden,
		"10.2.0.1:25":   wire.DestinationForbidden,
		"10.2.0.2:443":  wire.DestinationForbidden, // its own
		"[fd02::1]:443": wire.FamilyMismatch,
		"[fd02::2]:443": wire.DestinationForbidden,
		"10.2.0.255:0":  wire.DestinationForbidden,
	} {
		if got := refusal(t, w, alice, addr(server)); got != want {
			t.Errorf("%s: %v, want %v", server, got, want)
		}
	}
	if got := refusal(t, w, alice, netip.AddrPort{}); got != wire.Malformed {
		t.Errorf("no server: %v", got)
	}
	mustMap(t, w, alice, addr("10.2.0.1:1"), 0)
	mustMap(t, w, alice, addr("10.2.0.1:2"), 0)
	if got := refusal(t, w, alice, addr("10.2.0.1:3")); got != wire.QuotaMappings {
		t.Errorf("over the quota: %v", got)
	}
	mustMap(t, w, alice, addr("10.2.0.1:2"), 0)                // renewing is no new one
	mustMap(t, w, peer("bob", client4), addr("10.2.0.1:3"), 0) // another member has its own quota
	s, err := w.Snapshot()
	if err != nil || s.Refused[wire.DestinationForbidden] != 6 || s.Refused[wire.QuotaMappings] != 1 || s.Members[0].Refused[wire.FamilyMismatch] != 1 {
		t.Errorf("snapshot %+v, %v", s, err)
	}
	e := n.waitEntry(t, "refused", func(e attribution.Entry) bool { return e.Event == attribution.Refused && e.Refusal == "quota-mappings" })
	if e.Member != "alice" || e.Client != client4 || e.Server != addr("10.2.0.1:3") {
		t.Errorf("%+v", e)
	}
}

// The three reasons for a port other than the proposed one.
func TestOtherPorts(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	other := n.echo(t, "10.2.0.1:8443")
	n.waypoint.Listen(t, "0.0.0.0:22")
	n.waypoint.Listen(t, "127.0.0.1:23")
	w, _ := n.start(t)
	alice := peer("alice", client4)
	first := mustMap(t, w, alice, server, 443)
	if again := mustMap(t, w, alice, server, 444); again.Port != first.Port {
		t.Errorf("mapped already, yet another port: %+v", again)
	}
	elsewhere := mustMap(t, w, alice, other, 443)
	if elsewhere.Port == 443 || elsewhere.Port < lease.FirstPort || elsewhere.Port > lease.LastPort {
		t.Errorf("leads elsewhere, yet %+v", elsewhere)
	}
	if c := n.mustDial(t, netip.AddrPortFrom(waypoint4, elsewhere.Port)); c.talk(10) != nil {
		t.Error("the other port does not lead to the server")
	}
	if ssh := mustMap(t, w, alice, netip.MustParseAddrPort("10.2.0.1:22"), 22); ssh.Port == 22 {
		t.Error("a local listener is hidden from the client")
	}
	if local := mustMap(t, w, alice, netip.MustParseAddrPort("10.2.0.1:23"), 23); local.Port != 23 {
		t.Errorf("a listener on loopback takes the port: %+v", local)
	}
	if bob := mustMap(t, w, peer("bob", netip.MustParseAddr("10.1.0.11")), server, 443); bob.Port != 443 {
		t.Errorf("another client's port: %+v", bob)
	}
	// Another member behind the same address has mappings of his own.
	if carol := mustMap(t, w, peer("carol", client4), server, 443); carol.Port == first.Port {
		t.Errorf("two members share a mapping: %+v", carol)
	}
}

func TestExpel(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	server := n.echo(t, "10.2.0.1:443")
	server6 := n.echo(t, "[fd02::1]:443")
	w, _ := n.start(t)
	mustMap(t, w, peer("mallory", client4), server, 443)
	mustMap(t, w, peer("mallory", client6), server6, 443)
	mustMap(t, w, peer("bob", client4), server, 444)
	bad := []*conn{n.mustDial(t, netip.AddrPortFrom(waypoint4, 443)), n.mustDial(t, netip.AddrPortFrom(waypoint6, 443))}
	good := n.mustDial(t, netip.AddrPortFrom(waypoint4, 444))
	if err := w.Expel("mallory"); err != nil {
		t.Fatal(err)
	}
	for _, c := range bad {
		if err := c.talk(1000); err == nil {
			t.Errorf("the connection from %v goes on", c.LocalAddr())
		}
	}
	if err := good.talk(1000); err != nil {
		t.Errorf("bob's connection: %v", err)
	}
	if _, err := n.dial(t, netip.AddrPortFrom(waypoint4, 443)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
	if list, err := w.Mappings(); err != nil || len(list) != 1 || list[0].Member != "bob" {
		t.Errorf("mappings %+v, %v", list, err)
	}
	if err := w.Expel("nobody"); err != nil {
		t.Error(err)
	}
	n.waitEntry(t, "member-expelled", func(e attribution.Entry) bool {
		return e.Event == attribution.MemberExpelled && e.Member == "mallory"
	})
}

// A refusal by a giver of tunnels is counted and recorded like the waypoint's own.
func TestRefusedTunnels(t *testing.T) {
	run(t, func(t *testing.T, h *fakeHost) {
		w := h.start(t)
		refusal := &wire.Refusal{Code: wire.QuotaTunnels, Message: "8 of 8"}
		for range 3 {
			w.RefuseTunnel(t.Context(), peer("alice", client4), refusal)
		}
		s, err := w.Snapshot()
		if err != nil || s.Refused[wire.QuotaTunnels] != 3 {
			t.Errorf("refused %v, %v", s.Refused, err)
		}
		mustClose(t, w)
		w.RefuseTunnel(t.Context(), peer("alice", client4), refusal) // it is too late, and does not wait
	})
}
