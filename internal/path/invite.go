package path

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file lets bulk connections follow invitations. A loaded waypoint states the rate that one more member would
// get. If a detour of a connection carries clearly less, the connection challenges the detour with the waypoint
// (challenge.go). So where all waypoints of a collective are full, all members get about the same. The statement is
// only a reason to try the waypoint. The challenge decides. If the waypoint gave less than it stated, this host's
// connections to that network of servers do not believe it for a while, each time for twice as long. If it did so
// towards several networks, no connection believes it for a while. Otherwise it would cost each network a try.

const (
	// acceptsOneIn makes one in 4 of the invited connections come each time, so that not all come at once.
	acceptsOneIn = 4
	// doubtedFor is the time for which a waypoint that gave less than it stated is not believed. It doubles each time,
	// up to doubtedMost. The waypoint may have invited others at the same time.
	doubtedFor  = 30 * time.Second
	doubtedMost = 2 * time.Hour
	// manyNetworks is the number of networks towards which a waypoint must have given less than it stated to be doubted
	// towards all.
	manyNetworks = 3
	// believedAfter is the time without disappointment after which a waypoint's count starts again.
	believedAfter = 2 * doubtedMost
)

// disappointments counts how often each waypoint gave less than it stated, towards all networks of servers.
type disappointments map[string]disappointed

type disappointed struct {
	networks []netip.Prefix // the first manyNetworks of them
	times    int
	at       time.Time // the last time
}

// inviting returns the waypoint that states the highest rate, and the connection's poorest detour, if exchanging that
// would gain clearly. Otherwise who is empty.
func (t trying) inviting(ready []readySubflow, sum float64) (who string, poorest readySubflow) {
	i := slices.IndexFunc(ready, func(s readySubflow) bool { return s.addsNothing() || t.presses(s.subflow) })
	if i < 0 {
		return "", poorest
	}
	poorest = ready[i]
	most := max(policy.SameFactor*poorest.rate, poorest.rate+(tryoutGain-1)*sum)
	for o := range t.unused() {
		is := t.detours.loads[viaOf(&o.Detour)]
		if is.until.After(t.now) && is.gives > most && !o.Kind.Own() && t.detours.believes(o.Waypoint, t.server, t.now) {
			who, most = o.Waypoint, is.gives
		}
	}
	return who, poorest
}

// accepts decides at random whether the connection follows an invitation now.
func (t trying) accepts(waypoint string) bool {
	return t.views.drawAt(t.token, waypoint, t.now)%acceptsOneIn == 0
}

// believes reports whether a waypoint's statement is believed.
func (k *detours) believes(waypoint string, server netip.AddrPort, now time.Time) bool {
	r, _ := k.history.of(waypoint, server)
	doubts := doubled(doubtedFor, r.doubts-1, doubtedMost)
	return !r.isShunned(now) && !within(r.doubted, now, doubts) && !k.disappointments.doubts(waypoint, now)
}

// disappoints records that a waypoint gave less than it stated.
func (k *detours) disappoints(waypoint string, server netip.AddrPort, now time.Time) {
	key := trailOf(waypoint, server)
	if r, known := k.history[key]; known {
		r.doubts, r.doubted = r.doubts+1, now
		k.history[key] = r
	}
	k.disappointments.add(key, now)
}

func (h disappointments) add(t trail, now time.Time) {
	d := h[t.waypoint]
	if !within(d.at, now, believedAfter) {
		d = disappointed{}
	}
	if len(d.networks) < manyNetworks && !slices.Contains(d.networks, t.network) {
		d.networks = append(d.networks, t.network)
	}
	d.times, d.at = d.times+1, now
	h[t.waypoint] = d
}

// doubts reports whether a waypoint is doubted towards all networks of servers.
func (h disappointments) doubts(waypoint string, now time.Time) bool {
	d := h[waypoint]
	return len(d.networks) >= manyNetworks && within(d.at, now, doubled(doubtedFor, d.times-1, doubtedMost))
}

// forget drops old counts.
func (h disappointments) forget(now time.Time) {
	maps.DeleteFunc(h, func(_ string, d disappointed) bool { return !within(d.at, now, believedAfter) })
}
