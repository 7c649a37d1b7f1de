package lease

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Port is a port of this host at which the converter takes connections for a member. It does not end with its session.
type Port struct {
	Port   uint16         `json:"port"`
	Member string         `json:"member"`
	ID     rules.MemberID `json:"-"`
	Ways   []Way          `json:"ways"` // the newest first
	// Expelled is set if the connections must end, too, because the member was expelled. The port stays in the list until
	// its lease would have been over.
	Expelled bool `json:"expelled,omitempty"`
}

// Way is an address at which the member takes the connections.
type Way struct {
	At      netip.AddrPort `json:"at"`
	Cookie  []byte         `json:"cookie"` // for the member's relay
	Expires time.Time      `json:"expires"`
}

func (p Port) equal(o Port) bool {
	return p.Port == o.Port && p.Member == o.Member && p.ID == o.ID && p.Expelled == o.Expelled && slices.EqualFunc(p.Ways, o.Ways, func(a, b Way) bool {
		return a.At == b.At && slices.Equal(a.Cookie, b.Cookie) && a.Expires.Equal(b.Expires)
	})
}

// EqualPorts reports whether two lists of ports are the same.
func EqualPorts(a, b []Port) bool { return slices.EqualFunc(a, b, Port.equal) }

// PortsRequest requests ports. They replace those that the member requested before from the same address.
type PortsRequest struct {
	Request
	Listens uint16 // the port of the member's relay
	Ports   []wire.Incoming
}

// ports has the ports that members have.
type ports struct {
	allowed []uint16
	held    map[uint16]*heldPort
}

type heldPort struct {
	member *Member
	ways   []Way
	// expelled is the time until which Ports lists the port as that of an expelled member; zero: the member is not expelled.
	// Another member may have the port meanwhile.
	expelled time.Time
}

// TakePorts assigns ports to a member. The answer has the reason for each port that it refuses.
func (l *Leases) TakePorts(r PortsRequest, under Conditions) []wire.IncomingGrant {
	m := l.members.byName[r.Name] // not nil, because the member was admitted to the converter
	l.ports.endWays(func(port uint16, h *heldPort, w Way) bool {
		wanted := slices.ContainsFunc(r.Ports, func(x wire.Incoming) bool { return x.Port == port })
		return h.member == m && w.At.Addr() == r.Client && !wanted
	})
	var answers []wire.IncomingGrant
	for _, x := range r.Ports {
		code := l.ports.refuses(m, x.Port, under)
		if code == 0 {
			code = reachable(netip.AddrPortFrom(r.Client, r.Listens), under)
		}
		if code == 0 && under.PortUnusable != nil && under.PortUnusable(x.Port, r.Name) {
			code = wire.PortUnusable
		}
		if code == 0 || code == wire.PortUnusable { // the converter tries again while the member requests the port
			way := Way{At: netip.AddrPortFrom(r.Client, r.Listens), Cookie: x.Cookie, Expires: under.Now.Add(l.terms.Lifetime)}
			l.ports.give(m, x.Port, way)
		}
		answers = append(answers, wire.IncomingGrant{Port: x.Port, Refused: code})
	}
	return answers
}

// refuses returns the reason why a member may not have a port; 0: it may.
func (p *ports) refuses(m *Member, port uint16, under Conditions) wire.Code {
	if m == nil {
		return wire.Busy
	}
	if !slices.Contains(p.allowed, port) {
		return wire.PortForbidden
	}
	if h := p.held[port]; h != nil && h.expelled.IsZero() {
		if h.member != m {
			return wire.PortTaken
		}
		return 0
	}
	n := 0
	for _, h := range p.held {
		if h.member == m && h.expelled.IsZero() {
			n++
		}
	}
	if n >= wire.MostIncoming {
		return wire.QuotaPorts
	}
	if under.PortTaken(port) {
		return wire.PortTaken
	}
	return 0
}

// reachable returns the reason why the converter may not connect to a member's relay; 0: it may.
func reachable(at netip.AddrPort, under Conditions) wire.Code {
	err := under.Policy.Check(at)
	switch {
	case err == nil:
		return 0
	case egress.ForNow(err):
		return wire.NotReady
	}
	return wire.DestinationForbidden
}

// give adds a way. It replaces the one from the same address.
func (p *ports) give(m *Member, port uint16, way Way) {
	h := p.held[port]
	if h == nil || !h.expelled.IsZero() {
		h = &heldPort{member: m}
		p.held[port] = h
	}
	others := slices.DeleteFunc(slices.Clone(h.ways), func(w Way) bool { return w.At.Addr() == way.At.Addr() })
	h.ways = slices.Concat([]Way{way}, others)
}

// endWays ends the ways for which which returns true. A port without any is free again.
func (p *ports) endWays(which func(port uint16, h *heldPort, w Way) bool) {
	for port, h := range p.held {
		h.ways = slices.DeleteFunc(slices.Clone(h.ways), func(w Way) bool { return which(port, h, w) })
		if len(h.ways) == 0 && h.expelled.IsZero() {
			delete(p.held, port)
		}
	}
}

// expire ends the ways whose leases are over.
func (p *ports) expire(now time.Time) {
	p.endWays(func(_ uint16, _ *heldPort, w Way) bool { return !now.Before(w.Expires) })
	maps.DeleteFunc(p.held, func(_ uint16, h *heldPort) bool { return !h.expelled.IsZero() && !now.Before(h.expelled) })
}

// expel ends all ports of a member, and their connections.
func (p *ports) expel(m *Member) {
	for _, h := range p.held {
		if h.member != m {
			continue
		}
		for _, w := range h.ways {
			if w.Expires.After(h.expelled) {
				h.expelled = w.Expires
			}
		}
		h.ways = nil
	}
}

// endOf ends all ports of a member.
func (p *ports) endOf(m *Member) {
	p.endWays(func(_ uint16, h *heldPort, _ Way) bool { return h.member == m })
}

// Ports returns the ports that members have, in their order. The result is not changed later.
func (l *Leases) Ports() []Port {
	list := make([]Port, 0, len(l.ports.held))
	for port, h := range l.ports.held {
		list = append(list, Port{Port: port, Member: h.member.Name, ID: h.member.ID, Ways: h.ways, Expelled: !h.expelled.IsZero()})
	}
	slices.SortFunc(list, func(a, b Port) int { return cmp.Compare(a.Port, b.Port) })
	return list
}

// AdoptPorts takes over the ports that an earlier agent gave, of members that are still admitted to the converter.
func (l *Leases) AdoptPorts(list []Port, now time.Time) {
	for _, p := range list {
		m := l.members.byName[p.Member]
		if m == nil || l.conversions[m.ID] == nil || !slices.Contains(l.ports.allowed, p.Port) {
			continue
		}
		for _, w := range slices.Backward(p.Ways) {
			l.ports.give(m, p.Port, w)
		}
	}
	l.ports.expire(now)
}
