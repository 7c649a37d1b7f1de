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

// maxKnocking bounds the members for whom a waypoint knocks at the same time.
const maxKnocking = 32

// doorman knocks for members that want to be let in.
type doorman struct {
	life    context.Context // the agent's
	prober  *nat.Prober
	outside func() (netip.AddrPort, nat.Leaves) // where others see us, and who gets in
	log     *slog.Logger
	busy    chan struct{}
}

func newDoorman(ctx context.Context, o *outside.Outside, log *slog.Logger) *doorman {
	return &doorman{life: ctx, prober: o.Prober(), log: log, busy: make(chan struct{}, maxKnocking), outside: o.Reach}
}

// run answers knocks until ctx ends.
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

// knock sends to where a member is seen, for a while. It does not block; when too many want it, the member
// tries again.
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

// admit lets in what a member's tunnel sends, where the session alone does not see to that: its packets
// come from another port. Behind a NAT of the member's own that port may be another one; then they do not.
func (d *doorman) admit(member string, from netip.AddrPort) {
	if _, leaves := d.outside(); leaves != nat.Reachable {
		d.knock(member, stun.NewID(), []netip.AddrPort{from})
	}
}

// knockable leaves out private places where this host is seen at a public one: from there nobody can be
// seen at them, and hosts of our own network are none of a member's business.
func knockable(places []netip.AddrPort, outside netip.AddrPort) []netip.AddrPort {
	if !outside.IsValid() || nat.IsPrivate(outside.Addr()) {
		return places
	}
	return slices.DeleteFunc(slices.Clone(places), func(p netip.AddrPort) bool { return nat.IsPrivate(p.Addr()) })
}
