package path

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// This file leaves a detour at once that has turned bad in the middle of bulk traffic. An ordinary exchange takes its time
// (exchange.go), because it acts on small differences. Here the difference is large and has just come:
//
//   - What the detour gives has collapsed, by the network's doing.
//   - The connection's other subflows get what they got. They have not gained what it lost: then the scheduler would have
//     moved the traffic. If no other carries, the collapse has lasted for a while. Or they all fell with it, without a queue or
//     losses of their own: then they wait for it, because the receiver puts the data in order.
//   - Another waypoint gave much more than what is left, or was not measured yet.
//
// A connection that has fled stays with what it has for a while, which doubles each time. The history learns at once what the
// detour gives now, so later connections do not return there.

const (
	// The other subflows keep at least this share of their usual rate, and gain at most this part of what was lost.
	othersKeep = 0.7
	othersGain = 0.5
	// If they keep less than this share, all fell together.
	othersFall = 0.35
	// A detour that carries alone is left after so long: this host's own line may be the cause.
	unwitnessed = 5 * time.Second
	// While a detour has collapsed, one connection in fleesOneIn leaves in each sample, so that not all leave at once.
	fleesOneIn = 4
)

// collapse is the reason for leaving a detour: what it gave, and gives, in bits a second.
type collapse struct {
	waypoint string
	was, is  float64
}

// flee has a detour exchanged that has collapsed. It reports whether there is one.
func (m *Manager) flee(t turn) bool {
	if t.kind != measure.Bulk || t.fledLately() {
		return false
	}
	s := t.collapsed(m)
	if s == nil || m.views.drawAt(t.token, s.detour.Waypoint, t.now)%fleesOneIn != 0 {
		return false
	}
	was, is := s.habits.fall.Rates()
	if m.refuge(t) < exchangeFactor*is {
		return false
	}
	t.fled = t.now
	m.giveWay(t, s)
	t.flights++
	t.left = &collapse{s.detour.Waypoint, was, is}
	m.detours.history.fell(s.detour.Waypoint, t.server, is, t.now)
	m.together(t.now).leaves(s.detour.Waypoint, t.server, t.now)
	return true
}

// giveWay has another waypoint take the place of a detour that has collapsed. It ends first, unless the server is known to accept
// one more subflow: the join would be refused, and nothing is lost.
func (m *Manager) giveWay(t turn, s *subflow) {
	if room, known := m.places.room(t); known && room > 0 {
		s.crowded = t.now
		return
	}
	s.leaving = true
	if t.tryouts == nil {
		return
	}
	best, goodput := m.bestTried(t)
	if goodput >= m.refuge(t) {
		t.tryouts.next, t.tryouts.tries, t.tryouts.nextAt = best, false, t.now
	}
}

// fledLately reports whether the connection fled so lately that it stays with what it has.
func (t turn) fledLately() bool {
	return t.flights > 0 && t.now.Sub(t.fled) < min(staysAfter<<min(t.flights-1, 10), staysMost)
}

// collapsed returns the detour that has collapsed while the other subflows have not, or nil.
func (t turn) collapsed(m *Manager) *subflow {
	s, lost := t.fell(m)
	if s == nil {
		return nil
	}
	var usual, recent float64
	signs := false
	for _, x := range t.subflows {
		if x == s || x.backup || !x.measuredAt(t.now) {
			continue
		}
		if was, is := x.habits.fall.Rates(); was >= slackGoodput { // else it shows nothing, or is not known yet
			usual += was
			recent += is
			signs = signs || x.habits.fall.Signs()
		}
	}
	if recent < othersFall*usual {
		switch _, is := s.habits.fall.Rates(); {
		case signs || is == 0 || s.habits.fall.Since() >= unwitnessed:
			t.excuseFalls()
		case s.habits.fall.Has():
			return s
		}
		return nil
	}
	if usual == 0 && s.habits.fall.Since() < unwitnessed || recent < othersKeep*usual || recent-usual > othersGain*lost || !s.habits.fall.Has() {
		return nil
	}
	return s
}

// fell returns the detour that lost most of what it usually carries, and how much.
func (t turn) fell(m *Manager) (worst *subflow, lost float64) {
	for _, s := range t.subflows {
		if s.backup || !s.measuredAt(t.now) || s.habits.bound > 0 || !m.exchangeable(t, s) {
			continue
		}
		if was, is := s.habits.fall.Rates(); was-is > lost {
			worst, lost = s, was-is
		}
	}
	return worst, lost
}

// excuseFalls ends that subflows count as fallen, because all did.
func (t turn) excuseFalls() {
	for _, s := range t.subflows {
		if s.habits != nil {
			s.habits.fall.Excuse()
		}
	}
}

// refuge returns what the connection may expect of the best waypoint that it may take and does not use. One that was not
// measured is expected to give what is usual.
func (m *Manager) refuge(t turn) float64 {
	most := m.mostLeft(t, func(string) bool { return false })
	if !m.detours.exploration.may(t.now) {
		return most
	}
	for o := range m.spare(t) {
		if m.detours.history.given(o.Waypoint, t.server, t.now) == 0 {
			return max(most, m.detours.usualGoodput(t))
		}
	}
	return most
}

// fell records that bulk traffic gets no more than this on a trail from now on.
func (h history) fell(waypoint string, server netip.AddrPort, goodput float64, now time.Time) {
	key := trail{waypoint, prefixOf(server.Addr())}
	r := h[key]
	r.goodput, r.goodputAt, r.at = goodput, now, now
	h[key] = r
}
