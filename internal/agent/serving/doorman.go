package serving

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/agent/member"
	"github.com/detour-collective/dcol/internal/agent/outside"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/stun"
)

// maxKnocking bounds the members for which a waypoint punches holes at the same time.
const maxKnocking = 32

// doorman punches holes in the NAT for members: it sends packets to their addresses (knocks).
type doorman struct {
	life    context.Context // the agent's
	prober  *nat.Prober
	outside func() (netip.AddrPort, nat.Leaves) // our address as seen by others, and how they can reach it
	log     *slog.Logger
	busy    chan struct{}
}

func newDoorman(ctx context.Context, o *outside.Outside, log *slog.Logger) *doorman {
	return &doorman{life: ctx, prober: o.Prober(), log: log, busy: make(chan struct{}, maxKnocking), outside: o.Reach}
}

// run handles requests for hole punching until ctx ends.
func (d *doorman) run(ctx context.Context, knocks <-chan member.Knock) {
	for {
		select {
		case <-ctx.Done():
			return
		case k := <-knocks:
			d.knock(k.From, k.ID, k.At)
		}
	}
}

// knock sends packets to a member's addresses for some seconds. It does not block. If there are too many requests, it does
// nothing, and the member tries again.
func (d *doorman) knock(from string, id stun.ID, at []netip.AddrPort) {
	outside, _ := d.outside()
	places := knockable(at, outside)
	if len(places) == 0 {
		return
	}
	select {
	case d.busy <- struct{}{}:
	default:
		d.log.Warn("too many members request hole punching at the same time", "member", from)
		return
	}
	go func() {
		defer func() { <-d.busy }()
		heard, err := d.prober.Knock(d.life, places, id)
		d.log.Debug("sent hole-punching packets for a member", "member", from, "at", places, "heard", heard, "err", err)
	}()
}

// admit punches a hole for a member's tunnel, which uses another port than the session. If the member's own NAT changes that
// port, the tunnel's packets do not get in.
func (d *doorman) admit(member string, from netip.AddrPort) {
	if _, leaves := d.outside(); leaves != nat.Reachable {
		d.knock(member, stun.NewID(), []netip.AddrPort{from})
	}
}

// knockable removes private addresses if this host's external address is public: no member can be seen at them, and members
// must not make us send to hosts in our own network.
func knockable(places []netip.AddrPort, outside netip.AddrPort) []netip.AddrPort {
	if !outside.IsValid() || nat.IsPrivate(outside.Addr()) {
		return places
	}
	return slices.DeleteFunc(slices.Clone(places), func(p netip.AddrPort) bool { return nat.IsPrivate(p.Addr()) })
}
