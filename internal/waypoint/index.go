package waypoint

import (
	"container/heap"
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Ports that are given when the proposed one cannot be had. Below are services, above what Linux
// itself uses for outgoing connections and masquerading at the upper end by default.
const (
	firstPort = 20000
	lastPort  = 60999
)

// index mirrors the kernel's mappings. Times come from the caller.
type index struct {
	seed     maphash.Seed
	byKey    map[rules.Key]*mapping
	byTarget map[target]*mapping
	byMember map[rules.MemberID]int
	expiry   expiryHeap
}

// target finds the mapping that a member at an address has to a server. The member is part of it:
// two members behind one address must not share a mapping, or the traffic of one would be
// attributed to the other.
type target struct {
	member rules.MemberID
	client netip.Addr
	server netip.AddrPort
}

type mapping struct {
	key     rules.Key
	server  netip.AddrPort
	member  rules.MemberID
	expires time.Time
	inHeap  int
	by      *attribution.Session // over which it was asked for last; nil if that is not known
}

func newIndex() *index {
	return &index{
		seed:     maphash.MakeSeed(),
		byKey:    make(map[rules.Key]*mapping),
		byTarget: make(map[target]*mapping),
		byMember: make(map[rules.MemberID]int),
	}
}

func (m *mapping) target() target { return target{m.member, m.key.Client, m.server} }

// rule is the mapping as the kernel gets it.
func (m *mapping) rule(now time.Time) rules.Mapping {
	return rules.Mapping{Client: m.key.Client, Port: m.key.Port, Server: m.server, Member: m.member, Left: m.expires.Sub(now)}
}

func (x *index) len() int { return len(x.byKey) }

func (x *index) find(t target) *mapping { return x.byTarget[t] }

// add adds a mapping. One that there is for the same target lives on until its lease is over, but is not found
// any more.
func (x *index) add(m *mapping) {
	x.byKey[m.key] = m
	x.byTarget[m.target()] = m
	x.byMember[m.member]++
	heap.Push(&x.expiry, m)
}

func (x *index) remove(m *mapping) {
	delete(x.byKey, m.key)
	if x.byTarget[m.target()] == m {
		delete(x.byTarget, m.target())
	}
	if x.byMember[m.member]--; x.byMember[m.member] == 0 {
		delete(x.byMember, m.member)
	}
	heap.Remove(&x.expiry, m.inHeap)
}

func (x *index) extend(m *mapping, expires time.Time) {
	m.expires = expires
	heap.Fix(&x.expiry, m.inHeap)
}

// nextExpiry is when the first mapping expires.
func (x *index) nextExpiry() (time.Time, bool) {
	if len(x.expiry) == 0 {
		return time.Time{}, false
	}
	return x.expiry[0].expires, true
}

// expire removes and returns a mapping that expired at or before the time, or nil.
func (x *index) expire(until time.Time) *mapping {
	if next, ok := x.nextExpiry(); !ok || next.After(until) {
		return nil
	}
	m := x.expiry[0]
	x.remove(m)
	return m
}

// choosePort finds a port for a new mapping of a client: the proposed one unless it leads elsewhere
// or something local listens there, else one of the range; ok is false if none is free. Where the
// search begins depends on the target and a secret alone, so that a mapping tends to get its port again and
// others cannot tell which it is.
func (x *index) choosePort(t target, proposed uint16, listening func(uint16) bool) (port uint16, ok bool) {
	free := func(port uint16) bool {
		_, taken := x.byKey[rules.Key{Client: t.client, Port: port}]
		return !taken && !listening(port)
	}
	if proposed != 0 && free(proposed) {
		return proposed, true
	}
	const ports = lastPort - firstPort + 1
	start := maphash.Comparable(x.seed, t) % ports
	for i := range uint64(ports) {
		if port := uint16(firstPort + (start+i)%ports); free(port) {
			return port, true
		}
	}
	return 0, false
}

// expiryHeap is a container/heap, the first to expire on top.
type expiryHeap []*mapping

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }

func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].inHeap, h[j].inHeap = i, j
}

func (h *expiryHeap) Push(v any) {
	m := v.(*mapping)
	m.inHeap = len(*h)
	*h = append(*h, m)
}

func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	m := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return m
}
