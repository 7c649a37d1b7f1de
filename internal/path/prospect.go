package path

import (
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file estimates what a connection may expect of detours that it does not use yet. The estimates come from other
// connections' measurements through the same waypoint towards the server's network. Where there are none, they come
// from the round trip of the session with the waypoint, and from the least loss that the session's losses prove.
//
// Goodputs and waits are compared by classes, and a random number decides between detours of the same classes, so that many
// clients do not all take the best one. The borders between classes are random, too, for each connection: with fixed borders,
// two detours that differ by a hundredth could be in two classes for all connections.
//
// One connection in policy.ExploreEvery explores: once, it takes a detour that was not measured before those that were. If
// there are several, it takes the one that other members rate best (hearsay.go). Its other detours are those that it would
// take anyway. explore.go bounds the cost.

// prospect returns what the connection may expect of a detour.
func (vs *views) prospect(t turn, k *detours, o *offered) (p policy.Prospect) {
	p.Loaded, p.Sparing = k.loads.of(viaOf(&o.Detour), t.now), k.budget.Spares(o.Waypoint)
	if !vs.byWorth {
		return p
	}
	p.Draw, p.Border = vs.draw(t.token, o.Waypoint), vs.border(t.token)
	r, known := k.history.of(o.Waypoint, t.server)
	if known && r.isShunned(t.now) {
		p.Shunned, p.Loss = r.shunned, r.loss
	}
	bulk := k.history.expected(t.conn, t.now) == measure.Bulk
	if bulk {
		if p.Goodput, p.Gave = k.expectedGoodput(o.Waypoint, t.server, t.now); !p.Gave {
			p.Goodput = k.usualGoodput(t)
		}
	}
	switch session, ok := k.sessions.worth[viaOf(&o.Detour)]; {
	case r.hasTrip(t.now):
		p.Wait, p.Measured = waits(r.trip, r.lost())+k.together.queue(o.Waypoint, t.server, t.now), true
	case ok: // the waypoint's path to the server is assumed to be as long as the direct path
		p.Wait = waits(session.trip+k.directTrip(t), session.loss)
	}
	if next, tries := t.nextTryout(); next != "" {
		p.Next = next == o.Waypoint
		p.Explores = p.Next && tries
		return p
	}
	if vs.explores(t.token) && !t.tried && k.exploration.may(t.now) {
		measured := p.Measured && !bulk || p.Gave
		p.Rank, p.Explores = k.rank(o.Waypoint, measured, bulk, t.now), !measured
	}
	return p
}

// directTrip returns the round trip of the direct path to the server: the one in the history, or else that of the connection. It
// returns 0 if neither is known.
func (k *detours) directTrip(t turn) time.Duration {
	if direct, _ := k.history.of("", t.server); direct.trip > 0 {
		return direct.trip
	}
	if s := t.find(func(s *subflow) bool { return s.direct }); s != nil {
		return s.minRTT
	}
	return 0
}

// explores reports whether a connection takes a detour that was not measured before those that were.
func (vs *views) explores(token Token) bool { return vs.draw(token, "")%policy.ExploreEvery == 0 }

// border returns a number in [0, 1), which shifts the borders between classes for a connection (policy.Prospect). It uses
// other bits of the random number than explores does.
func (vs *views) border(token Token) float64 { return float64(vs.draw(token, "")>>32) / (1 << 32) }

// draw returns a random number that is the same for the same connection and waypoint.
func (vs *views) draw(token Token, waypoint string) uint64 {
	x := mix(vs.seed ^ mix(uint64(token)))
	for i := range len(waypoint) {
		x = mix(x ^ uint64(waypoint[i]))
	}
	return x
}

// mix scrambles x: each changed bit of x changes about half of the bits of the result (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
