package rules

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// Load implements Kernel. If another version wrote the table, Load reads what it understands.
func (t *Table) Load() (State, bool, error) {
	comment, ok, err := t.conn.SetComment(table, t.schema.members.Name)
	if err != nil || !ok {
		return State{}, false, err
	}
	l := &loader{conn: t.conn}
	var s State
	for _, f := range []family{t.schema.four, t.schema.six} {
		s.Mappings = append(s.Mappings, l.mappings(f)...)
		s.Admissions = append(s.Admissions, l.admissions(f.tunnels)...)
		s.Forbidden = append(s.Forbidden, l.ranges(f.forbidden)...)
	}
	switch t.schema.options.InBand {
	case InBandOpen:
		s.Admissions = append(s.Admissions, l.admissions(t.schema.inBand.open)...)
	case InBandAuthenticated:
		s.Admissions = append(s.Admissions, l.keyedAdmissions(t.schema.inBand.keyed)...)
	case InBandOff:
	}
	if t.schema.options.Converter > 0 {
		s.Admissions = append(s.Admissions, l.converted(t.schema.converted)...)
	}
	for _, e := range l.elements(t.schema.members) {
		if m, ok := decodeMember(e); ok {
			s.Members = append(s.Members, m)
		}
	}
	for _, e := range l.elements(t.schema.ports) {
		s.ForbiddenPorts = append(s.ForbiddenPorts, decodePort(e.Key))
	}
	s.TunnelInterfaces = l.interfaces(t.schema.tunnelIfs)
	s.Guarded4, s.Guarded6 = l.interfaces(t.schema.four.guarded), l.interfaces(t.schema.six.guarded)
	s.Closed = len(l.elements(t.schema.closed)) > 0
	for _, e := range l.elements(t.schema.stopped) {
		if id, ok := t.decodeStopped(e); ok {
			s.Stopped = append(s.Stopped, id)
		}
	}
	slices.Sort(s.Stopped)
	quota := l.quota(&s)
	if l.err != nil {
		return State{}, false, l.err
	}
	// The comment and the quota are written together. If only one of them is as expected, somebody has changed the table
	// by hand.
	same := comment == t.schema.members.Comment && quota == (t.schema.options.Quota > 0) && t.inBandForbids(l, s.Forbidden)
	if l.err != nil || !same {
		return s, false, l.err
	}
	if same, err = t.conn.Adopt(table, t.leastRules(s), t.schema.sets...); err != nil || !same {
		return s, false, err
	}
	same, err = t.namesServers()
	return s, same, err
}

// leastRules returns the smallest number of rules that each chain of a complete table with this state has.
func (t *Table) leastRules(s State) map[string]int {
	least := make(map[string]int)
	for _, c := range t.schema.chains {
		least[c.name] = len(c.rules)
	}
	if t.schema.options.Quota > 0 {
		least[quotaChain] = len(t.schema.quota(0).rules)
	}
	for _, c := range markChains(s.Mappings, s.Admissions) {
		least[c.name()] = len(c.chain(t.schema.options.Marks).rules)
	}
	return least
}

// inBandForbids reports whether the in-band rule has the same forbidden ranges as the rest of the table.
func (t *Table) inBandForbids(l *loader, forbidden []egress.Range) bool {
	if t.schema.options.InBand == InBandOff {
		return true
	}
	four := slices.DeleteFunc(slices.Clone(forbidden), func(r egress.Range) bool { return r.First.Is6() })
	return slices.Equal(four, l.ranges(t.schema.inBand.forbidden))
}

// loader reads sets. After an error it reads nothing more.
type loader struct {
	conn *nft.Conn
	err  error
}

func (l *loader) elements(set nft.Set) []nft.Element {
	if l.err != nil {
		return nil
	}
	var elements []nft.Element
	elements, l.err = l.conn.Elements(table, set)
	return elements
}

// quota reads the used part of the quota, and reports whether there is a quota.
func (l *loader) quota(s *State) (there bool) {
	if l.err == nil {
		s.Used, there, l.err = l.conn.QuotaUsed(table, quotaChain)
	}
	return there
}

func (l *loader) mappings(f family) []Mapping {
	marks := l.elements(f.marks)
	members := make(map[Key]MemberID, len(marks))
	for _, e := range marks {
		key, ok := decodeKey(e.Key, f)
		if c, ours := parseMarkChain(e.Jump); ok && ours {
			members[key] = c.member
		}
	}
	servers := l.elements(f.servers)
	mappings := make([]Mapping, 0, len(servers))
	for _, e := range servers {
		key, ok := decodeKey(e.Key, f)
		server, serverOK := decodeKey(e.Data, f)
		member, known := members[key]
		if ok && serverOK && known && e.Expires > 0 {
			mappings = append(mappings, Mapping{Client: key.Client, Port: key.Port,
				Server: netip.AddrPortFrom(server.Client, server.Port), Member: member, Left: e.Expires})
		}
	}
	return mappings
}

// admissions reads a map of addresses.
func (l *loader) admissions(set nft.Set) []Admission {
	var list []Admission
	for _, e := range l.elements(set) {
		addr, ok := netip.AddrFromSlice(e.Key)
		if c, ours := parseMarkChain(e.Jump); ok && ours && e.Expires > 0 {
			list = append(list, Admission{Addr: addr, Kind: c.kind, Member: c.member, Left: e.Expires})
		}
	}
	return list
}

// keyedAdmissions reads a map of IPv4 addresses with marks.
func (l *loader) keyedAdmissions(set nft.Set) []Admission {
	const addrSize = 4
	var list []Admission
	for _, e := range l.elements(set) {
		if len(e.Key) < addrSize || e.Expires <= 0 {
			continue
		}
		addr, _ := netip.AddrFromSlice(e.Key[:addrSize])
		if c, ours := parseMarkChain(e.Jump); ours {
			list = append(list, Admission{Addr: addr, Kind: c.kind, Member: c.member, Left: e.Expires})
		}
	}
	return list
}

// converted reads the map of the marks of the converter's sockets.
func (l *loader) converted(set nft.Set) []Admission {
	var list []Admission
	for _, e := range l.elements(set) {
		if c, ours := parseMarkChain(e.Jump); ours && e.Expires > 0 {
			list = append(list, Admission{Kind: c.kind, Member: c.member, Left: e.Expires})
		}
	}
	return list
}

func (l *loader) ranges(set nft.Set) []egress.Range {
	var ranges []egress.Range
	for _, e := range l.elements(set) {
		first, ok := netip.AddrFromSlice(e.Key)
		last, lastOK := netip.AddrFromSlice(e.Last)
		if ok && lastOK {
			ranges = append(ranges, egress.Range{First: first, Last: last})
		}
	}
	return ranges
}

func (l *loader) interfaces(set nft.Set) []string {
	var names []string
	for _, e := range l.elements(set) {
		names = append(names, strings.TrimRight(string(e.Key), "\x00"))
	}
	return names
}
