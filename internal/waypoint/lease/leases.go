package lease

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Terms are the operator's settings for leases.
type Terms struct {
	MappingsPerMember int
	Lifetime          time.Duration // of mappings and in-band admissions
	InBand            rules.InBandMode
	Marks             rules.Marks
	Incoming          []uint16 // ports at which the converter may take connections for members
}

// Conditions are the circumstances of a decision, besides the terms and the leases.
type Conditions struct {
	Now    time.Time
	Giving giving.Standing
	Policy *egress.Policy // mappings and ports only
	// LoadedUntil is the time until which members with another waypoint get no further mapping; zero: the waypoint is not
	// loaded.
	LoadedUntil time.Time
	PortTaken   func(port uint16) bool // mappings and ports only: reports whether a program of this host uses a port
	// PortUnusable reports whether the converter cannot listen at a port for a member. If nil, every port can be used.
	PortUnusable func(port uint16, member string) bool
	NoInBand     string // in-band only: the reason why it is not offered; empty: it is offered
	// Of returns the further conditions of one member, by name; nil: there are none.
	Of func(member string) MemberConditions
}

// MemberConditions are the circumstances of one member.
type MemberConditions struct {
	Servers egress.Narrowing
	Giving  giving.Standing // to this member
}

// of returns the further conditions of a member.
func (c Conditions) of(member string) MemberConditions {
	if c.Of == nil {
		return MemberConditions{}
	}
	return c.Of(member)
}

// Leases holds all leases at this waypoint.
type Leases struct {
	terms       Terms
	members     *members
	sessions    *sessions
	mappings    *mappings
	admissions  admissions
	tunnels     map[netip.Addr]*tunnelAddress
	conversions map[rules.MemberID]*conversion
	ports       ports
	refusals    *attribution.Refusals
}

// New returns empty Leases.
func New(terms Terms) *Leases {
	return &Leases{
		terms:       terms,
		members:     newMembers(terms.Marks.MaxMembers()),
		sessions:    newSessions(),
		mappings:    newMappings(),
		admissions:  make(admissions),
		tunnels:     make(map[netip.Addr]*tunnelAddress),
		conversions: make(map[rules.MemberID]*conversion),
		ports:       ports{allowed: terms.Incoming, held: make(map[uint16]*heldPort)},
		refusals:    attribution.NewRefusals(),
	}
}

// State returns the table for the leases: mappings, admissions and members.
func (l *Leases) State(now time.Time) rules.State {
	var s rules.State
	for c := range l.admissions.callers() {
		s.Admissions = append(s.Admissions, l.admissions.rule(c, now))
	}
	for addr, t := range l.tunnels {
		s.Admissions = append(s.Admissions, t.rule(addr, now))
	}
	for _, c := range l.conversions {
		s.Admissions = append(s.Admissions, c.rule(now))
	}
	for _, m := range l.mappings.byKey {
		if m.Expires().After(now) {
			s.Mappings = append(s.Mappings, m.rule(now))
		}
	}
	for _, m := range l.members.all() {
		s.Members = append(s.Members, m.Member)
	}
	return s
}

// Installed records that the kernel has the State.
func (l *Leases) Installed() {
	for _, m := range l.members.byName {
		m.saved = true
	}
}

// Merge adds unknown members and mappings of the kernel's table.
func (l *Leases) Merge(s rules.State, now time.Time) {
	l.members.adopt(s.Members)
	l.mappings.adopt(s.Mappings, now)
}

// Adopt takes over the table that an earlier agent left. keys are the present keys for in-band SYNs, by address.
func (l *Leases) Adopt(s rules.State, keys map[netip.Addr][]inband.Slot, now time.Time) {
	l.Merge(s, now)
	for _, a := range s.Admissions {
		m := l.members.byID[a.Member]
		switch {
		case m == nil:
		case a.Kind == wire.InBand:
			l.adoptAdmission(Caller{m, a.Addr}, keys[a.Addr], now, now.Add(a.Left))
		case a.Kind == wire.Converter:
			l.conversions[m.ID] = &conversion{member: m, expires: now.Add(a.Left)}
		default:
			l.tunnels[a.Addr] = &tunnelAddress{member: m, kind: a.Kind, expires: now.Add(a.Left)}
		}
	}
}

// RememberIDs gives members that are missing in the kernel's table their former ids when they come again.
func (l *Leases) RememberIDs(ids map[string]rules.MemberID) { l.members.remember(ids) }

// IDs returns the ids of members by name, also of those that are only remembered.
func (l *Leases) IDs() map[string]rules.MemberID { return l.members.ids() }

// Restore sets the sessions in which adopted grants were requested, as far as known. The kernel's table has the members only.
func (l *Leases) Restore(sessions map[attribution.Grant]*attribution.Session) {
	for _, m := range l.mappings.byKey {
		m.by = sessions[attribution.Grant{Member: l.members.of(m.Member).Name, Client: m.Key.Client, Port: m.Key.Port}]
	}
	for _, list := range l.admissions {
		for _, a := range list {
			a.by = sessions[attribution.Grant{Member: a.Member.Name, Kind: wire.InBand.String(), Client: a.Addr}]
		}
	}
	for addr, t := range l.tunnels {
		t.by = sessions[attribution.Grant{Member: t.member.Name, Kind: t.kind.String(), Client: addr}]
	}
}

// Empty reports whether there are no leases.
func (l *Leases) Empty() bool {
	return len(l.mappings.byKey) == 0 && len(l.admissions) == 0 && len(l.tunnels) == 0 && len(l.conversions) == 0
}

// Member returns the member with the id, or a stand-in if nobody has it.
func (l *Leases) Member(id rules.MemberID) *Member { return l.members.of(id) }

// Known returns the member with the name, or nil if it is not known.
func (l *Leases) Known(name string) *Member { return l.members.byName[name] }

// Members returns the members, sorted by name.
func (l *Leases) Members() []*Member { return l.members.all() }

// Mappings returns the mappings. Some may be expired already.
func (l *Leases) Mappings(now time.Time) []rules.Mapping {
	list := make([]rules.Mapping, 0, len(l.mappings.byKey))
	for _, m := range l.mappings.byKey {
		list = append(list, m.rule(now))
	}
	return list
}

// Held counts the leases of a member.
type Held struct{ Mappings, Tunnels int }

// Held returns the number of leases of each member. A tunnel whose session has ended does not count until it is requested
// again.
func (l *Leases) Held() map[rules.MemberID]Held {
	all := make(map[rules.MemberID]Held)
	for id, n := range l.mappings.byMember {
		all[id] = Held{Mappings: n}
	}
	for addr, t := range l.tunnels {
		if addr.Is4() && !t.left { // each tunnel has one such address
			h := all[t.member.ID]
			h.Tunnels++
			all[t.member.ID] = h
		}
	}
	return all
}

// InBandAddresses returns the number of addresses that are admitted to in-band detours.
func (l *Leases) InBandAddresses() int { return len(l.admissions) }

// AskedBy returns the session in which a member requested the lease that let a connection through; nil if it is not known. If
// several sessions from one address are admitted to in-band detours, it returns the newest.
func (l *Leases) AskedBy(id rules.MemberID, kind wire.Kind, from netip.Addr, port uint16) *attribution.Session {
	switch kind {
	case wire.Mapped:
		if m := l.mappings.byKey[rules.Key{Client: from, Port: port}]; m != nil && m.Member == id {
			return m.by
		}
	case wire.InBand:
		return l.admissions.by(id, from)
	case wire.Converter:
		if c := l.conversions[id]; c != nil {
			return c.by
		}
	default:
		if t := l.tunnels[from]; t != nil && t.member.ID == id {
			return t.by
		}
	}
	return nil
}
