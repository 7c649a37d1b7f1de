package waypoint

import (
	"errors"
	"net/netip"

	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// presence is a member at an address.
type presence struct {
	member *member
	addr   netip.Addr
}

// sessions knows where members' sessions come from.
type sessions struct {
	live map[uint64]presence // by id
	at   map[presence]int
}

func newSessions() *sessions {
	return &sessions{live: make(map[uint64]presence), at: make(map[presence]int)}
}

func (s *sessions) add(id uint64, p presence) {
	s.live[id] = p
	s.at[p]++
	p.member.sessions++
}

// remove returns where the session came from last; ok is false if it is not known.
func (s *sessions) remove(id uint64) (p presence, ok bool) {
	if p, ok = s.live[id]; !ok {
		return presence{}, false
	}
	delete(s.live, id)
	if s.at[p]--; s.at[p] == 0 {
		delete(s.at, p)
	}
	p.member.sessions--
	return p, true
}

// SessionUp tells of a member's session, before anything else of it.
func (w *Waypoint) SessionUp(peer Peer) {
	_ = w.ask(func() {
		if m := w.members.get(peer.Name, peer.Serial); m != nil {
			w.sessions.add(peer.ID, presence{m, peer.client()})
		}
	})
}

// SessionDown tells of the end of a session, after everything else of it. In-band detours end with a
// member's last session from an address, at once; connections that are open go on.
func (w *Waypoint) SessionDown(peer Peer) {
	_ = w.ask(func() {
		if p, ok := w.sessions.remove(peer.ID); ok {
			w.leaveTunnels(peer.ID)
			w.sessionLeft(peer.ID, p)
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
		w.sessions.add(now.ID, presence{old.member, now.client()})
		w.sessionLeft(before.ID, old)
		w.left(old, now.client())
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
	ended, err := w.endFlows(rules.Of(old.member.ID), old.addr)
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
