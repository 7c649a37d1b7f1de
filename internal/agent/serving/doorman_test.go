package serving

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/nat"
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
