package path

import (
	"cmp"
	"math"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file estimates what a connection may expect of detours that it does not use yet. The estimates come from other
// connections' measurements through the same waypoint towards the server's network. Where there are none, they come
// from the round trip of the session with the waypoint, and from the least loss that the session's losses prove.
//
// Detours are compared roughly, and a random number decides between detours that are about as good, so that many
// clients do not all take the best one. Each connection draws the borders between its classes of goodputs and of waits.
// With fixed borders, two detours that differ by a hundredth but stand on two sides of a border would never be about the
// same. One connection in exploreEvery explores: once, it takes a detour that was not
// measured before those that were. If there are several, it takes the one that other members rate best (hearsay.go).
// Its other detours are those that it would take anyway. explore.go bounds the cost.

const (
	// exploreEvery makes one connection in 16 explore.
	exploreEvery = 16
	// sameFactor is the factor below which two waits, or two goodputs, are about the same.
	sameFactor = 1.3
	// sameSlack is added to two waits before they are compared.
	sameSlack = 5 * time.Millisecond
	// slackGoodput is added to a goodput in the same way, in bits a second.
	slackGoodput = 100e3
)

// prospect returns what the connection may expect of a detour.
func (vs *views) prospect(t turn, k *detours, o *offered) (p Prospect) {
	p.Loaded, p.Sparing = k.loads.of(o.via(), t.now), k.budget.Spares(o.Waypoint)
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
		if p.Goodput, p.Gave = k.expects(o.Waypoint, t.server, t.now); !p.Gave {
			p.Goodput = k.usualGoodput(t)
		}
	}
	switch session, ok := k.sessions.worth[o.via()]; {
	case known && r.trip > 0 && within(r.at, t.now, trustsFor):
		p.Wait, p.Measured = waits(r.trip, r.lost()), true
	case ok: // the waypoint's path to the server is assumed to be as long as the direct path
		direct, _ := k.history.of("", t.server)
		p.Wait = waits(session.trip+direct.trip, session.loss)
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

// explores reports whether a connection takes a detour that was not measured before those that were.
func (vs *views) explores(token Token) bool { return vs.draw(token, "")%exploreEvery == 0 }

// border returns where the classes of a connection begin, as a part of a class in [0, 1). It is random for each connection.
// It uses other bits of the random number than explores does.
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

// compare compares two prospects by the budget, then by the goodput, then by the wait. Goodputs and waits are
// compared roughly. An unknown wait comes last.
func (p *Prospect) compare(q *Prospect) int {
	return cmp.Or(
		compareFlags(p.Sparing, q.Sparing), cmp.Compare(q.goodputClass(), p.goodputClass()), cmp.Compare(p.waitClass(), q.waitClass()),
	)
}

// goodputClass returns the class of the goodput. Goodputs of one class are about the same.
func (p *Prospect) goodputClass() int { return p.class(p.Goodput + slackGoodput) }

// waitClass returns the class of the wait. Waits of one class are about the same.
func (p *Prospect) waitClass() int {
	if p.Wait == 0 {
		return math.MaxInt
	}
	return p.class(float64(p.Wait + sameSlack))
}

func (p *Prospect) class(x float64) int { return int(math.Log(x)/math.Log(sameFactor) + p.Border) }
