package lease

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// The range of ports for mappings whose proposed port is not free. Lower ones are for services; higher ones are those that
// Linux uses by default for outgoing connections and masquerading.
const (
	FirstPort = 20000
	LastPort  = 60999
)

// Mapping is a port of the waypoint that leads a member's client to a server.
type Mapping struct {
	Key    rules.Key
	Server netip.AddrPort
	Member rules.MemberID

	lease deadline.Entry[*Mapping]
	by    *attribution.Session // session of the last request; nil if not known
}

// Expires returns when the lease is over.
func (m *Mapping) Expires() time.Time { return m.lease.Due() }

// target identifies a mapping by member, client address and server. The member is included because two members behind one
// address must not share a mapping: the traffic of one would be attributed to the other.
type target struct {
	member rules.MemberID
	client netip.Addr
	server netip.AddrPort
}

func (m *Mapping) target() target { return target{m.Member, m.Key.Client, m.Server} }

// rule returns the mapping for the kernel's table.
func (m *Mapping) rule(now time.Time) rules.Mapping {
	return rules.Mapping{Client: m.Key.Client, Port: m.Key.Port, Server: m.Server, Member: m.Member, Left: m.Expires().Sub(now)}
}

// mappings mirrors the kernel's mappings.
type mappings struct {
	seed     maphash.Seed
	byKey    map[rules.Key]*Mapping
	byTarget map[target]*Mapping
	byMember map[rules.MemberID]int
	expiry   *deadline.Queue[*Mapping]
}

func newMappings() *mappings {
	return &mappings{
		seed:     maphash.MakeSeed(),
		byKey:    make(map[rules.Key]*Mapping),
		byTarget: make(map[target]*Mapping),
		byMember: make(map[rules.MemberID]int),
		expiry:   deadline.New[*Mapping](nil),
	}
}

// add adds a mapping. An existing one for the same target stays until its lease expires, but is no longer found.
func (x *mappings) add(m *Mapping, expires time.Time) {
	x.byKey[m.Key] = m
	x.byTarget[m.target()] = m
	x.byMember[m.Member]++
	m.lease.Item = m
	x.extend(m, expires)
}

func (x *mappings) extend(m *Mapping, expires time.Time) { x.expiry.Set(&m.lease, expires) }

func (x *mappings) remove(m *Mapping) {
	delete(x.byKey, m.Key)
	if x.byTarget[m.target()] == m {
		delete(x.byTarget, m.target())
	}
	if x.byMember[m.Member]--; x.byMember[m.Member] == 0 {
		delete(x.byMember, m.Member)
	}
	x.extend(m, time.Time{})
}

// adopt adds unknown mappings of the kernel's table.
func (x *mappings) adopt(list []rules.Mapping, now time.Time) {
	for _, m := range list {
		if x.byKey[m.Key()] == nil && x.byTarget[target{m.Member, m.Client, m.Server}] == nil {
			x.add(&Mapping{Key: m.Key(), Server: m.Server, Member: m.Member}, now.Add(m.Left))
		}
	}
}

// expire removes and returns a mapping whose lease had expired at the time, or nil.
func (x *mappings) expire(until time.Time) *Mapping {
	first := x.expiry.First()
	if first == nil || first.Due().After(until) {
		return nil
	}
	x.remove(first.Item)
	return first.Item
}

// choosePort returns a port for a new mapping of a client: the proposed one, unless it is mapped to another server or a
// program listens on it; otherwise one of the range. ok is false if none is free. The search begins at a port that depends
// only on the target and a secret, so that a mapping usually gets the same port again and others cannot guess it.
func (x *mappings) choosePort(t target, proposed uint16, taken func(uint16) bool) (port uint16, ok bool) {
	free := func(port uint16) bool {
		_, mapped := x.byKey[rules.Key{Client: t.client, Port: port}]
		return !mapped && !taken(port)
	}
	if proposed != 0 && free(proposed) {
		return proposed, true
	}
	const ports = LastPort - FirstPort + 1
	start := maphash.Comparable(x.seed, t) % ports
	for i := range uint64(ports) {
		if port := uint16(FirstPort + (start+i)%ports); free(port) {
			return port, true
		}
	}
	return 0, false
}
