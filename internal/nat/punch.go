package nat

import (
	"context"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// Hole punching lets a client open a session with a host whose NAT lets in packets only from
// addresses to which the host has sent. Through a third party, the client reports its external
// address. The host sends requests there (it knocks), which makes its NAT let the client in. The
// client sends to the host's external address. If a knock arrives, the client sends to its source
// from then on, which a symmetric NAT may have hidden before.

// knocks lists the times of knocks, from the beginning. At first they are frequent, because each side's first packet
// may arrive before the other side has opened its way. They last long enough for the slower side to be notified.
var knocks = []time.Duration{
	0, 50 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond,
	800 * time.Millisecond, 1200 * time.Millisecond, 1700 * time.Millisecond, 2300 * time.Millisecond,
}

// knocksLast is the duration of knocking, including the last packet's travel time.
const knocksLast = 3 * time.Second

// maxPlaces bounds the number of addresses to which a member can make us knock.
const maxPlaces = 4

// Knock sends requests with this id to the possible addresses of an end until a message with the id
// arrives, and returns its source. If none arrives in time, the error is ErrNoAnswer. That is no
// failure for knocks that open a way for QUIC, because these may go unanswered before QUIC takes
// over.
func (p *Prober) Knock(ctx context.Context, places []netip.AddrPort, id stun.ID) (netip.AddrPort, error) {
	ch := p.wait(id)
	defer p.forget(id)
	packet := stun.Message{ID: id, Request: true}.Append(nil)
	places = places[:min(len(places), maxPlaces)]
	begin := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; ; i++ {
		at := knocksLast
		if i < len(knocks) {
			at = knocks[i]
		}
		timer.Reset(time.Until(begin.Add(at)))
		select {
		case h := <-ch:
			return h.from, nil
		case <-ctx.Done():
			return netip.AddrPort{}, context.Cause(ctx)
		case <-timer.C:
		}
		if i == len(knocks) {
			return netip.AddrPort{}, ErrNoAnswer
		}
		for _, to := range places {
			if err := p.write(packet, to); err != nil {
				p.log.Debug("knock", "at", to, "err", err)
			}
		}
	}
}
