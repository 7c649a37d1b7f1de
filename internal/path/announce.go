package path

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
	"github.com/detour-collective/dcol/internal/path/policy"
)

// This file announces this host's other addresses to the peers of connections that it accepted (ADD_ADDR, RFC 8684,
// section 3.4.1), for rules that want that. The acknowledgement that carries an announcement may be lost, and Linux
// repeats an announcement only after minutes. So the announcement is sent again until a subflow comes up at the
// address, but only a few times, because the peer may not want a subflow there.
//
// When this host loses an address, it withdraws it (REMOVE_ADDR, section 3.4.2). The subflows from the address end
// first, so that the kernel cannot send the REMOVE_ADDR on one of them. Nothing shows whether a REMOVE_ADDR arrived,
// because the peer's answers go to the lost address. So it is sent as often as an announcement.

const (
	// copyAfter is the time from a signal to its first copy. The time doubles with each copy.
	copyAfter = 300 * time.Millisecond
	// announceCopies is the number of times that an address is announced or withdrawn. Where 30 % of the
	// acknowledgements are lost, all of them are lost once in 15,000 times.
	announceCopies = 8
)

// copies counts how often a signal was sent that the peer does not acknowledge.
type copies struct {
	sent int
	last time.Time
}

// next returns when another copy is due if at most that many copies are sent in all, or zero if there is none.
func (c *copies) next(most int) time.Time {
	if c.sent == 0 || c.sent >= most {
		return time.Time{}
	}
	return c.last.Add(copyAfter << (c.sent - 1))
}

func (c *copies) count(now time.Time) { c.sent, c.last = c.sent+1, now }

// Announce tells the peer that it may connect to an address of this host, too (ADD_ADDR).
type Announce struct {
	Token   Token
	LocalID uint8
	Local   netip.Addr
}

func (Announce) action() {}

// accepted is a connection that this host accepted and whose peer is told of other addresses.
type accepted struct {
	token     Token
	own       netip.Addr
	uplinks   []string // names of the uplinks whose addresses are announced; nil: all
	addresses []announcement
	due       deadline.Entry[*accepted]
}

// announcement is an address that the peer is told of. Its id is its place in the list, plus one.
type announcement struct {
	addr      netip.Addr
	taken     bool   // a subflow came up there
	withdrawn bool   // this host lost the address, and copies counts the withdrawals
	subflows  []Ends // the latest subflows that came up there, at most policy.MostSubflows
	copies
}

// drop ends the subflows at an address that is gone, and begins to withdraw it.
func (x *announcement) drop(token Token, out *actions) {
	for _, s := range x.subflows {
		out.do(DestroySubflow{Token: token, Local: s.Local, Remote: s.Remote, IfOpen: true})
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

func (l *announcements) add(ev ConnEstablished, r *Rule) *accepted {
	a := &accepted{token: ev.Token, own: ev.Local.Addr().Unmap()}
	if p, ok := r.Policy.(policy.Mesh); ok {
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

// joined records that a subflow came up at an announced address.
func (l *announcements) joined(ev SubflowEstablished) {
	if a := l.byToken[ev.Token]; a != nil {
		for i := range a.addresses {
			if x := &a.addresses[i]; x.addr == ev.Local.Addr().Unmap() {
				x.taken = true
				x.subflows = append(x.subflows[max(0, len(x.subflows)+1-policy.MostSubflows):], Ends{ev.Local, ev.Remote})
			}
		}
	}
}

// announce sends the announcements and withdrawals that are due on one connection.
func (m *Manager) announce(a *accepted, now time.Time) {
	for _, o := range m.detours.general {
		known := slices.ContainsFunc(a.addresses, func(x announcement) bool { return x.addr == o.Local })
		if o.Kind == Uplink && !known && o.Local != a.own && o.Local.Is4() == a.own.Is4() && len(a.addresses) < policy.MostSubflows &&
			(len(a.uplinks) == 0 || slices.Contains(a.uplinks, o.Waypoint)) {
			a.addresses = append(a.addresses, announcement{addr: o.Local})
		}
	}
	var next time.Time
	for i := range a.addresses {
		x := &a.addresses[i]
		switch has := m.host.has(x.addr); {
		case has && x.withdrawn: // the address came back
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
				// Linux forgets an id after the first withdrawal. To repeat it, Linux is given the id with an address
				// again, and sends that address as well. The connection's own address is harmless: the peer knows it, and
				// would try to connect to any other.
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

// announceAll brings the announcements of all connections up to date after an address came or went.
func (m *Manager) announceAll(now time.Time) {
	for _, t := range slices.Sorted(maps.Keys(m.announcements.byToken)) {
		m.announce(m.announcements.byToken[t], now)
	}
}
