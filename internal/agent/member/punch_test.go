package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/membership"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/nat/stun"
)

func places(texts ...string) (list []netip.AddrPort) {
	for _, t := range texts {
		list = append(list, netip.MustParseAddrPort(t))
	}
	return list
}

// A member cannot have hosts of our own network sent to, unless that is where all of us are.
func TestKnockable(t *testing.T) {
	asked := places("203.0.113.9:40000", "192.168.1.7:40000", "[fd00::7]:40000", "[2001:db8::7]:40000")
	if got := knockable(asked, netip.MustParseAddrPort("198.51.100.1:45672")); !slices.Equal(got, places("203.0.113.9:40000", "[2001:db8::7]:40000")) {
		t.Errorf("outside is public: %v", got)
	}
	for _, outside := range []netip.AddrPort{{}, netip.MustParseAddrPort("10.0.0.1:45672")} {
		if got := knockable(asked, outside); !slices.Equal(got, asked) {
			t.Errorf("outside is %v: %v", outside, got)
		}
	}
}

// seenPort is a port of which the test sees what is sent.
type seenPort struct{ sent chan netip.AddrPort }

func (p seenPort) ReadOther(ctx context.Context, _ []byte) (int, netip.AddrPort, error) {
	<-ctx.Done()
	return 0, netip.AddrPort{}, net.ErrClosed
}

func (p seenPort) WriteOther(_ []byte, to netip.AddrPort) error {
	p.sent <- to
	return nil
}

// The waypoint sends to where a member's tunnel will come from, unless everybody gets in anyhow, and not for
// more members than it may at a time.
func TestDoorman(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := seenPort{make(chan netip.AddrPort, 1024)}
	leaves := nat.Punchable
	d := &doorman{
		life: ctx, prober: nat.NewProber(p, nil, slog.New(slog.DiscardHandler)), log: slog.New(slog.DiscardHandler),
		busy: make(chan struct{}, 2), outside: func() (netip.AddrPort, nat.Leaves) { return netip.MustParseAddrPort("198.51.100.1:45672"), leaves },
	}
	from := netip.MustParseAddrPort("203.0.113.9:40000")
	d.admit("alice", from)
	if got := <-p.sent; got != from {
		t.Errorf("sent to %v", got)
	}
	d.knock("bob", stun.NewID(), places("203.0.113.10:40000"))
	d.knock("carol", stun.NewID(), places("203.0.113.11:40000")) // one too many
	d.knock("dave", stun.NewID(), places("192.168.1.7:40000"))   // nowhere
	leaves = nat.Reachable
	d.admit("erin", netip.MustParseAddrPort("203.0.113.12:40000"))
	for timeout := time.After(300 * time.Millisecond); ; {
		select {
		case got := <-p.sent:
			if got != from && got.Addr().String() != "203.0.113.10" {
				t.Errorf("sent to %v", got)
			}
			continue
		case <-timeout:
		}
		return
	}
}

func TestWants(t *testing.T) {
	session := portmap.Want{Protocol: portmap.UDP, Port: 45672}
	if got := wants(45672, config.Waypoint{Offers: []config.Kind{config.WireGuard}, OpenVPNPort: 1194}); !slices.Equal(got, []portmap.Want{session}) {
		t.Errorf("WireGuard wants %v", got)
	}
	if got := wants(45672, config.Waypoint{Offers: []config.Kind{config.OpenVPN}, OpenVPNPort: 1194}); !slices.Equal(got, []portmap.Want{session, {Protocol: portmap.UDP, Port: 1194}}) {
		t.Errorf("OpenVPN wants %v", got)
	}
}

// Who lets in only what it has sent to says so, at the place where it is seen.
func TestOfferingPunch(t *testing.T) {
	var last membership.Offer
	o := &offering{offer: func(offer membership.Offer) { last = offer }, port: 45672, own: addrs("192.168.0.2"), punch: true, mapped: netip.MustParseAddrPort("192.0.2.1:50000")}
	o.say()
	if !last.Punch || last.Port != 50000 || !slices.Equal(last.Addresses, addrs("192.0.2.1")) {
		t.Errorf("%+v", last)
	}
}

// A member with several addresses is asked at one of them, and takes nobody's place.
func TestObservers(t *testing.T) {
	many := directory.Record{Name: "many", Port: 1}
	for i := range byte(maxObservers) {
		many.Addresses = append(many.Addresses, netip.AddrFrom4([4]byte{198, 51, 100, i}))
	}
	got := observersAmong([]directory.Record{
		many,
		{Name: "six", Addresses: addrs("2001:db8::1"), Port: 2},
		{Name: "punched", Addresses: addrs("203.0.113.1"), Port: 3, Punch: true},
		{Name: "other", Addresses: addrs("2001:db8::2", "203.0.113.2"), Port: 4},
	}, true)
	want := []nat.Observer{
		{Member: "many", At: netip.MustParseAddrPort("198.51.100.0:1")}, {Member: "other", At: netip.MustParseAddrPort("203.0.113.2:4")},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
