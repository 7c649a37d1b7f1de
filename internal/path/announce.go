package path

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
)

// This file announces this host's other addresses to the peers of connections that it accepted (ADD_ADDR, RFC 8684, section
// 3.4.1), for rules that want that. The acknowledgement that carries an announcement may be lost, and Linux repeats it only
// after minutes. So it is repeated until a subflow comes up at the address, a few times, as the peer may not want one.
//
// An address that this host no longer has is withdrawn (REMOVE_ADDR, section 3.4.2). Its subflows end first, so that none of
// them is chosen to carry that. Nothing shows whether a REMOVE_ADDR arrived: the peer's answers go to the lost address. So
// it is repeated as often as an announcement.

const (
	// copyAfter is the time until a signal's first copy. It doubles with each copy.
	copyAfter = 300 * time.Millisecond
	// announceCopies is the number of times that an address is announced or withdrawn. Where 30 % of the acknowledgements are
	// lost, all are lost once in 15,000 times.
	announceCopies = 8
)

// copies counts how often a signal was sent, of which nothing shows that it arrived.
type copies struct {
	sent int
	last time.Time
}

// next returns when another copy is due, of so many in all; zero: there is none.
func (c *copies) next(most int) time.Time {
	if c.sent == 0 || c.sent >= most {
		return time.Time{}
	}
	return c.last.Add(copyAfter << (c.sent - 1))
}

// count counts one more.
func (c *copies) count(now time.Time) { c.sent, c.last = c.sent+1, now }

// Announce tells the peer that it may connect to an address of this host, too (ADD_ADDR).
type Announce struct {
	Token   Token
	LocalID uint8
	Local   netip.Addr
}

func (Announce) action() {}

// accepted is a connection that this host accepted, and whose peer is told of addresses.
type accepted struct {
	token     Token
	own       netip.Addr
	uplinks   []string // whose addresses; nil: all
	addresses []announcement
	due       deadline.Entry[*accepted]
}

// announcement is an address of which the peer is told. Its place in the list is its id, less one.
type announcement struct {
	addr      netip.Addr
	taken     bool   // a subflow came up there
	withdrawn bool   // this host lost the address: copies counts withdrawals
	subflows  []Ends // the latest that came up there
	copies
}

// drop ends what was announced: the address is gone.
func (x *announcement) drop(token Token, out *actions) {
	for _, s := range x.subflows {
		out.do(DestroySubflow{Token: token, Local: s.Local, Remote: s.Remote, Orphan: true})
	}
	*x = announcement{addr: x.addr, withdrawn: true}
}

// announcements holds the connections whose peers are told of addresses.
type announcements struct {
	byToken map[Token]*accepted
	due     *deadline.Queue[*accepted]
}

func newAnnouncements() announcements {
	return announcements{make(map[Token]*accepted), deadline.New(func(a, b *accepted) int { return int(int64(a.token) - int64(b.token)) })}
}

// add takes in a connection.
func (l *announcements) add(ev ConnEstablished, r *Rule) *accepted {
	a := &accepted{token: ev.Token, own: ev.Local.Addr().Unmap()}
	if p, ok := r.Policy.(Mesh); ok {
		a.uplinks = p.Uplinks
	}
	a.due.Item = a
	l.byToken[ev.Token] = a
	return a
}

func (l *announcements) remove(token Token) {
	if a := l.byToken[token]; a != nil {
		l.due.Set(&a.due, time.Time{})
		delete(l.byToken, token)
	}
}

// joined handles a subflow that came up at an address of this host.
func (l *announcements) joined(ev SubflowEstablished) {
	if a := l.byToken[ev.Token]; a != nil {
		for i := range a.addresses {
			if x := &a.addresses[i]; x.addr == ev.Local.Addr().Unmap() {
				x.taken = true
				x.subflows = append(x.subflows[max(0, len(x.subflows)+1-mostSubflows):], Ends{ev.Local, ev.Remote})
			}
		}
	}
}

// announce sends what is due on one connection.
func (m *Manager) announce(a *accepted, now time.Time) {
	for _, o := range m.detours.general {
		known := slices.ContainsFunc(a.addresses, func(x announcement) bool { return x.addr == o.Local })
		if o.Kind == Uplink && !known && o.Local != a.own && o.Local.Is4() == a.own.Is4() && len(a.addresses) < mostSubflows &&
			(len(a.uplinks) == 0 || slices.Contains(a.uplinks, o.Waypoint)) {
			a.addresses = append(a.addresses, announcement{addr: o.Local})
		}
	}
	var next time.Time
	for i := range a.addresses {
		x := &a.addresses[i]
		switch has := m.host.has(x.addr); {
		case has && x.withdrawn: // it came back
			*x = announcement{addr: x.addr}
		case !has && !x.withdrawn && (x.sent > 0 || x.taken):
			x.drop(a.token, &m.out)
		case !has && !x.withdrawn:
			continue // the peer was not told yet
		}
		if x.taken {
			continue
		}
		if at := x.next(announceCopies); x.sent == 0 || !at.IsZero() && !now.Before(at) {
			x.count(now)
			if x.withdrawn {
				// Linux forgets an id with its first withdrawal. For the next ones it is told of an address again, and sends that,
				// too. The connection's own is no news to the peer, which would try to connect to another.
				m.out.do(RemoveAddr{a.token, uint8(i + 1), netip.AddrPortFrom(a.own, 0)})
			} else {
				m.out.do(Announce{a.token, uint8(i + 1), x.addr})
			}
		}
		if at := x.next(announceCopies); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	m.announcements.due.Set(&a.due, next)
}

// announceAll announces an address that is new to all connections, and withdraws one that is gone.
func (m *Manager) announceAll(now time.Time) {
	for _, t := range slices.Sorted(maps.Keys(m.announcements.byToken)) {
		m.announce(m.announcements.byToken[t], now)
	}
}
