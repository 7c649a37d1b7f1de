package waypoint

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
)

// SessionUp reports a member's new session. It is called before anything else about that session.
func (w *Waypoint) SessionUp(peer session.Peer) {
	_ = w.ask(func() {
		var by *attribution.Session
		if peer.Proof != nil {
			by = &attribution.Session{Proof: *peer.Proof, Opened: time.Now()}
		}
		w.loop.leases.SessionUp(request(peer, 0), by)
		if now := time.Now(); peer.Key != (session.Peer{}).Key && w.loop.limited.session(peer.Name, peer.Key.String(), now) {
			w.loop.checkLimited(now)
		}
	})
}

// SessionDown reports the end of a session. It is called after everything else about that session. When a
// member's last session from an address ends, its in-band detours from there end at once; open connections
// continue.
func (w *Waypoint) SessionDown(peer session.Peer) {
	_ = w.ask(func() { _ = w.loop.end(w.loop.leases.SessionDown(peer.ID, time.Now())) }) // end logs its failure
}

// SessionMoved reports that a session's address has changed.
func (w *Waypoint) SessionMoved(before, now session.Peer) {
	if clean(before.Addr) == clean(now.Addr) {
		return
	}
	_ = w.ask(func() {
		ending, old, ok := w.loop.leases.SessionMoved(before.ID, clean(now.Addr), time.Now())
		if ok {
			_ = w.loop.end(ending) // end logs its failure
			w.loop.callerLeft(old, clean(now.Addr))
		}
	})
}

// MemberLeft reports that a member has moved from an address to that of a session now. Its session from the old
// address has ended before.
func (w *Waypoint) MemberLeft(now session.Peer, from netip.Addr) {
	if clean(from) == clean(now.Addr) {
		return
	}
	_ = w.ask(func() {
		if m := w.loop.leases.Known(now.Name); m != nil {
			w.loop.callerLeft(lease.Caller{Member: m, Addr: clean(from)}, clean(now.Addr))
		}
	})
}

// callerLeft handles a member's move from one address to another. If it has no session left at the old address,
// its connections from there end. Their servers then get a reset, and have room for the member's next
// subflows.
func (l *loop) callerLeft(old lease.Caller, now netip.Addr) {
	if l.leases.Calls(old) {
		return
	}
	ended, err := l.connections.end(l.config.marks().Of(old.Member.ID), old.Addr)
	if err != nil {
		l.log.Warn("a member moved, and its connections from the old address stay", "member", old.Member.Name, "err", err)
		return
	}
	l.log.Info("member moved", "member", old.Member.Name, "from", old.Addr, "to", now, "connections_ended", ended)
}

// Expel ends a member's use of this waypoint at once: it removes the member's mappings and admissions and
// ends the connections. The caller must end the member's sessions before, and admit no new one.
func (w *Waypoint) Expel(name string) error {
	var err error
	asked := w.ask(func() { err = w.loop.expel(name, time.Now()) })
	if err = errors.Join(asked, err); err != nil {
		return fmt.Errorf("expel %s: %w", name, err)
	}
	return nil
}

func (l *loop) expel(name string, now time.Time) error {
	m := l.leases.Known(name)
	if m == nil {
		return nil
	}
	ending, mappings := l.leases.Expel(m, now)
	// The checks of each second retry what fails here.
	errs := []error{l.end(ending), l.table.unawait(m.ID)}
	if l.table.outOfStep { // the kernel may have entries that the leases lack
		errs = append(errs, l.table.install())
	}
	errs = append(errs, l.connections.endAll(l.config.marks().Of(m.ID)))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	l.record.Write(attribution.Entry{Time: now, Event: attribution.MemberExpelled, Member: m.Name, Serial: m.Serial})
	l.log.Info("member expelled", "member", name, "mappings", mappings)
	return nil
}
