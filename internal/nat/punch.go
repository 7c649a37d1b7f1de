package nat

import (
	"context"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// Hole punching: a client wants a session with a host whose NAT lets in only what was sent to. Over a third
// it tells where it is seen; the host knocks there, which makes the client somebody that was sent to; and
// the client's own packets go where the host is seen. If a knock arrives, its source is where to send to,
// also where a symmetric NAT hides it.

// Possible says whether a way can be opened between two ends that are told of each other and then send at
// the same time.
func Possible(a, b Found) bool {
	return getsIn(a, b) || getsIn(b, a)
}

// getsIn says whether what an end sends gets in at another, which has sent there. From then on each end
// knows where to send to.
func getsIn(from, to Found) bool {
	switch {
	case from.Mapping == NoWayOut || to.Mapping == NoWayOut:
		return false
	case to.Mapping == Dependent: // nobody knows where to send to
		return false
	case to.Filtering == PassesAll, to.Filtering == PassesAddresses, to.Filtering == PassesSome:
		return true
	}
	// It has sent to the very port that the packets come from, if that could be known. Where nothing is
	// known it is worth a try.
	return from.Mapping != Dependent
}

// knocks are when to knock, from the beginning: often at first, as each side's first packet may be there
// before the other side's way out is open, then for as long as the slower side may need to be told.
var knocks = []time.Duration{
	0, 50 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond,
	800 * time.Millisecond, 1200 * time.Millisecond, 1700 * time.Millisecond, 2300 * time.Millisecond,
}

// knocksLast is how long knocking takes, with a last packet's way.
const knocksLast = 3 * time.Second

// maxPlaces bounds to how many places a member can make us knock.
const maxPlaces = 4

// Knock sends requests with this id to where an end may be, until one of its messages with the id arrives
// or it has taken long enough, and returns where that came from; ErrNoAnswer if none came. Knocks that
// open a way for QUIC are not answered before QUIC takes over, so that is no failure.
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
