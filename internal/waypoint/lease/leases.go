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

// Terms are what an operator decides about leases.
type Terms struct {
	MappingsPerMember int
	Lifetime          time.Duration // of mappings and in-band admissions
	InBand            rules.InBandMode
	Marks             rules.Marks
}

// Conditions are what a request is decided by, beside the terms and what is leased.
type Conditions struct {
	Now       time.Time
	Giving    giving.Standing
	Policy    *egress.Policy         // mappings only
	PortTaken func(port uint16) bool // mappings only: reports whether a port is a program's of this host
	NoInBand  string                 // in-band only: why it is not offered; empty: it is
}

// Leases is all that members hold at this waypoint.
type Leases struct {
	terms      Terms
	members    *members
	sessions   *sessions
	mappings   *mappings
	admissions admissions
	tunnels    map[netip.Addr]*tunnelAddress
	refusals   *attribution.Refusals
}

// New returns leases of which nobody holds any.
func New(terms Terms) *Leases {
	return &Leases{
		terms:      terms,
		members:    newMembers(terms.Marks.MaxMembers()),
		sessions:   newSessions(),
		mappings:   newMappings(),
		admissions: make(admissions),
		tunnels:    make(map[netip.Addr]*tunnelAddress),
		refusals:   attribution.NewRefusals(),
	}
}

// State returns the table that goes with the leases: mappings, admissions and members.
func (l *Leases) State(now time.Time) rules.State {
	var s rules.State
	for c := range l.admissions.callers() {
		s.Admissions = append(s.Admissions, l.admissions.rule(c, now))
	}
	for addr, t := range l.tunnels {
		s.Admissions = append(s.Admissions, t.rule(addr, now))
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

// Installed notes that the kernel has the State.
func (l *Leases) Installed() {
	for _, m := range l.members.byName {
		m.saved = true
	}
}

// Merge adds the members and mappings of the kernel's table that are not known here.
func (l *Leases) Merge(s rules.State, now time.Time) {
	l.members.adopt(s.Members)
	l.mappings.adopt(s.Mappings, now)
}

// Adopt takes over all that an agent before us left in the table. keys are those that in-band SYNs from an address
// are checked with.
func (l *Leases) Adopt(s rules.State, keys map[netip.Addr][]inband.Slot, now time.Time) {
	l.Merge(s, now)
	for _, a := range s.Admissions {
		m := l.members.byID[a.Member]
		switch {
		case m == nil:
		case a.Kind == wire.InBand:
			l.adoptAdmission(Caller{m, a.Addr}, keys[a.Addr], now, now.Add(a.Left))
		default:
			l.tunnels[a.Addr] = &tunnelAddress{member: m, kind: a.Kind, expires: now.Add(a.Left)}
		}
	}
}

// Restore notes over which sessions was asked for what was adopted, as far as that is known: the kernel's table names
// members only.
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

// Empty reports whether nobody holds anything.
func (l *Leases) Empty() bool {
	return len(l.mappings.byKey) == 0 && len(l.admissions) == 0 && len(l.tunnels) == 0
}

// Member returns the member with the id, or a stand-in if nobody has it.
func (l *Leases) Member(id rules.MemberID) *Member { return l.members.of(id) }

// Known returns the member with the name, or nil if it has not been here yet.
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

// Held counts what a member holds.
type Held struct{ Mappings, Tunnels int }

// Held returns what each member holds. A tunnel does not count from the end of the session over which it was asked for
// until it is asked for again.
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

// AskedBy returns the session over which a member asked for what let a connection through; nil if it is not known. Of
// several from one address, any of which lets in-band connections through, it is the newest.
func (l *Leases) AskedBy(id rules.MemberID, kind wire.Kind, from netip.Addr, port uint16) *attribution.Session {
	switch kind {
	case wire.Mapped:
		if m := l.mappings.byKey[rules.Key{Client: from, Port: port}]; m != nil && m.Member == id {
			return m.by
		}
	case wire.InBand:
		return l.admissions.by(id, from)
	default:
		if t := l.tunnels[from]; t != nil && t.member.ID == id {
			return t.by
		}
	}
	return nil
}
