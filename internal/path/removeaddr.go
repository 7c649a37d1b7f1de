package path

import (
	"net/netip"
	"slices"
	"time"
)

// This host may end a subflow without the peer noticing, because the subflow's address is gone or nothing arrives.
// The subflow then keeps one of the server's few places. REMOVE_ADDR tells the peer. Linux sends it once, over one of
// the established subflows, without retransmission (docs/kernel-behaviour.md). Therefore:
//
//   - REMOVE_ADDR is sent only when every established subflow is known to stay. A server without a free place lets a
//     subflow come up and closes it a round trip later, and a REMOVE_ADDR on it would be lost.
//   - Only one is sent at a time, and joins follow after a pause: a Linux server drops a REMOVE_ADDR that arrives
//     before it has processed the last.
//   - A few copies follow, because nothing shows that one arrived, and the acknowledgement that carried it may be
//     lost. Until one arrives, the server may send on the dead subflow.
//   - It is repeated when a subflow that may have carried it ends or loses its address without having received data
//     since. It is also repeated up to maxRepeats times when the server still has no place.
//   - It is forgotten when a subflow that came up after it has stayed.
//   - If the server has no place, neither path nor waypoint is at fault, and the connection opens nothing for a
//     while. A place may become free without a REMOVE_ADDR: a waypoint resets connections from an address that its
//     member has left.

// removeAddrCopies is the number of times that a REMOVE_ADDR is sent. Where 30 % of the acknowledgements are lost,
// all of them are lost once in 120 times.
const removeAddrCopies = 4

// maxRepeats bounds the repetitions towards a server that may just accept no more subflows.
const maxRepeats = 2

// removeAddrGap is a generous bound on the time that a server needs to process a REMOVE_ADDR. That time depends on
// the server's scheduler, not on the network.
const removeAddrGap = 50 * time.Millisecond

// lostAddr is the source address of an ended subflow. The peer may not know that it is gone.
type lostAddr struct {
	id     uint8
	local  netip.AddrPort
	sent   time.Time // when REMOVE_ADDR was sent; zero: not yet, or it may not have arrived
	copies           // since then
	again  int       // times it was sent again because the server had no place
	// enough is set if the server has no place even after maxRepeats. Then REMOVE_ADDR is sent again only if a subflow
	// that may have carried it ends.
	enough bool
}

// copyAt returns when the next copy is sent, or zero if there is none.
func (l *lostAddr) copyAt() time.Time {
	if l.sent.IsZero() {
		return time.Time{}
	}
	return l.next(removeAddrCopies)
}

// removals holds the source addresses that the peer may not know to be gone.
type removals struct {
	lost []lostAddr
	last time.Time // when the last REMOVE_ADDR was sent
}

// owe records an address for which the peer needs a REMOVE_ADDR.
func (r *removals) owe(s *subflow) { r.lost = append(r.lost, lostAddr{id: s.id, local: s.local}) }

// doubt handles a subflow that ended or lost its address. REMOVE_ADDRs that it may have carried are sent again. Data
// that arrived within a round trip after one does not show that the peer got it.
func (r *removals) doubt(s *subflow) {
	for i := range r.lost {
		l := &r.lost[i]
		if s.up && !s.since.After(l.sent) && s.moved.Before(l.sent.Add(s.stays())) {
			l.sent, l.enough = time.Time{}, false
		}
	}
}

// repeat sends REMOVE_ADDRs again because the server has no place, perhaps because one was lost. After maxRepeats it
// assumes that the server accepts no more subflows.
func (r *removals) repeat() {
	for i := range r.lost {
		switch l := &r.lost[i]; {
		case l.sent.IsZero():
		case l.again < maxRepeats:
			l.sent = time.Time{}
			l.again++
		default:
			l.enough = true
		}
	}
}

// unsettled reports whether the server may still count a subflow because a REMOVE_ADDR has not reached it.
func (r *removals) unsettled() bool {
	return slices.ContainsFunc(r.lost, func(l lostAddr) bool { return !l.enough })
}

// pending reports whether a REMOVE_ADDR remains to be sent.
func (r *removals) pending() bool {
	return slices.ContainsFunc(r.lost, func(l lostAddr) bool { return l.sent.IsZero() })
}

// settling reports whether a REMOVE_ADDR waits until a new subflow is known to stay. Until then the server has no
// place for more.
func (t turn) settling() bool {
	return (t.removals.pending() || t.has(func(s *subflow) bool { return !t.host.hasSource(s) })) &&
		t.has(func(s *subflow) bool { return s.up && t.host.hasSource(s) && !s.stayed(t.now) })
}

// canAnnounceRemoval reports whether the connection has established subflows and all of them are known to stay.
func (t turn) canAnnounceRemoval() bool {
	alive := func(s *subflow) bool { return s.up && t.host.hasSource(s) }
	return t.has(alive) && !t.has(func(s *subflow) bool { return alive(s) && !s.stayed(t.now) })
}

// announcingRemoval reports whether a REMOVE_ADDR can be sent now or was sent just before.
func (t turn) announcingRemoval() bool {
	can := len(t.removals.lost) > 0 && t.canAnnounceRemoval()
	return slices.ContainsFunc(t.removals.lost, func(l lostAddr) bool {
		return l.sent.IsZero() && can || t.now.Sub(l.sent) < removeAddrGap
	})
}

// takeBack ends subflows, for the reasons that were recorded, and tells the peer by REMOVE_ADDR. It ends all of them
// before the first REMOVE_ADDR is sent, because the kernel could send one on a subflow that is about to end.
func (t turn) takeBack(gone ...*subflow) {
	for _, s := range gone {
		why, _ := t.takePlanned(s)
		t.departs(s, true, why, t.now)
		t.out.do(DestroySubflow{Token: t.token, Local: s.local, Remote: s.remote, IfOpen: s.direct || !t.host.hasSource(s)})
		t.remove(s)
		t.removals.doubt(s)
		t.dropped = t.now
	}
	for _, s := range gone {
		if s.id != 0 && t.ownsID(s) {
			t.removals.owe(s)
		}
	}
}

// dropOrphans removes subflows whose local address is gone, once a REMOVE_ADDR can be sent.
func (t turn) dropOrphans() {
	if !t.canAnnounceRemoval() {
		return
	}
	orphans := t.where(func(s *subflow) bool { return !t.host.hasSource(s) })
	for _, s := range orphans {
		t.planEnd(s, SubflowReason{Cause: CauseNoAddress})
	}
	t.takeBack(orphans...)
}

// sendRemoveAddr sends one of the outstanding REMOVE_ADDRs, if that is possible.
func (t turn) sendRemoveAddr() {
	r := &t.removals
	if len(r.lost) == 0 || !t.canAnnounceRemoval() {
		return
	}
	r.lost = slices.DeleteFunc(r.lost, func(l lostAddr) bool {
		return l.copies.sent >= removeAddrCopies && !l.sent.IsZero() && t.has(func(s *subflow) bool { return s.since.After(l.sent) && s.stayed(t.now) })
	})
	i := slices.IndexFunc(r.lost, func(l lostAddr) bool { return l.sent.IsZero() })
	if i < 0 {
		i = slices.IndexFunc(r.lost, func(l lostAddr) bool { return l.copies.sent < removeAddrCopies && !t.now.Before(l.copyAt()) })
	}
	if i < 0 || t.now.Sub(r.last) < removeAddrGap {
		return
	}
	l := &r.lost[i]
	if l.sent.IsZero() {
		l.sent, l.copies = t.now, copies{}
		if l.again == 0 { // which frees a place
			t.room = retry{}
		}
	}
	l.count(t.now)
	r.last = t.now
	t.out.do(RemoveAddr{t.token, l.id, l.local})
}
