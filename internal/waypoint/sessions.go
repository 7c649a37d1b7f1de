package waypoint

import (
	"errors"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
)

// presence is a member at an address.
type presence struct {
	member *member
	addr   netip.Addr
}

// liveSession is a session, where it comes from now.
type liveSession struct {
	presence
	by *attribution.Session // what the member has signed
}

// sessions knows where members' sessions come from.
type sessions struct {
	live map[uint64]liveSession // by id
	at   map[presence]int
}

func newSessions() *sessions {
	return &sessions{live: make(map[uint64]liveSession), at: make(map[presence]int)}
}

// by is what a session is known by in the log.
func (s *sessions) by(id uint64) *attribution.Session { return s.live[id].by }

func (s *sessions) add(id uint64, l liveSession) {
	s.live[id] = l
	s.at[l.presence]++
	l.member.sessions++
}

// remove returns the session as it was last; ok is false if it is not known.
func (s *sessions) remove(id uint64) (l liveSession, ok bool) {
	if l, ok = s.live[id]; !ok {
		return liveSession{}, false
	}
	delete(s.live, id)
	if s.at[l.presence]--; s.at[l.presence] == 0 {
		delete(s.at, l.presence)
	}
	l.member.sessions--
	return l, true
}

// SessionUp tells of a member's session, before anything else of it.
func (w *Waypoint) SessionUp(peer Peer) {
	_ = w.ask(func() {
		if m := w.members.get(peer.Name, peer.Serial); m != nil {
			l := liveSession{presence: presence{m, peer.client()}}
			if peer.Proof != nil {
				l.by = &attribution.Session{Proof: *peer.Proof, Opened: time.Now()}
			}
			w.sessions.add(peer.ID, l)
		}
	})
}

// SessionDown tells of the end of a session, after everything else of it. In-band detours end with a
// member's last session from an address, at once; connections that are open go on.
func (w *Waypoint) SessionDown(peer Peer) {
	_ = w.ask(func() {
		if l, ok := w.sessions.remove(peer.ID); ok {
			w.leaveTunnels(peer.ID)
			w.sessionLeft(peer.ID, l.presence)
		}
	})
}

// SessionMoved tells that a session's member has another address now.
func (w *Waypoint) SessionMoved(before, now Peer) {
	if before.client() == now.client() {
		return
	}
	_ = w.ask(func() {
		old, ok := w.sessions.remove(before.ID)
		if !ok {
			return
		}
		w.sessions.add(now.ID, liveSession{presence{old.member, now.client()}, old.by})
		w.sessionLeft(before.ID, old.presence)
		w.left(old.presence, now.client())
	})
}

// MemberLeft tells that a member has gone from an address to that of a session, by a gap in which
// its session from there ended.
func (w *Waypoint) MemberLeft(now Peer, from netip.Addr) {
	if from = from.Unmap().WithZone(""); from == now.client() {
		return
	}
	_ = w.ask(func() {
		if m := w.members.known(now.Name); m != nil {
			w.left(presence{m, from}, now.client())
		}
	})
}

// left is for a member that has gone from one address to another. If no session of it is left at the
// old one, nobody is there any more: its connections from there end, so that their servers meet a
// reset and have room for the member's next subflows.
func (w *Waypoint) left(old presence, now netip.Addr) {
	if w.sessions.at[old] > 0 {
		return
	}
	ended, err := w.endFlows(w.config.marks().Of(old.member.ID), old.addr)
	if err != nil {
		w.log.Warn("a member moved, and its connections from the old address stay", "member", old.member.Name, "err", err)
		return
	}
	w.log.Info("member moved", "member", old.member.Name, "from", old.addr, "to", now, "connections_ended", ended)
}

// endFlows makes the kernel forget connections that came from any of the addresses.
func (w *Waypoint) endFlows(of netstate.MarkMatch, from ...netip.Addr) (int, error) {
	is := make(map[netip.Addr]bool, len(from))
	for _, a := range from {
		is[a] = true
	}
	which := func(f netstate.Flow) bool { return is[f.Origin.Src.Addr()] }
	left := w.leaveFastPathEach(of, which)
	w.flowsMu.Lock()
	defer w.flowsMu.Unlock()
	n, err := w.kernel.flows.DeleteEach(of, which)
	return n, errors.Join(left, err)
}
