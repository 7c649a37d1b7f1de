package strangers

import (
	"net/netip"
	"sync"
)

// Places are shared by strangers: one for each, until it is admitted or leaves. It is for connections that no
// net.Listener accepts.
type Places struct {
	seen *Seen

	mu     sync.Mutex
	others crowd // strangers from any address
	likely crowd // strangers from addresses where a member was seen
}

// NewPlaces returns free places. Of the limits, Total and PerSource count.
func NewPlaces(limits Limits, seen *Seen) *Places {
	return &Places{seen: seen, others: newCrowd(limits), likely: newCrowd(limits)}
}

// Place is a stranger's.
type Place struct {
	places *Places
	source netip.Prefix
	crowd  *crowd
	evict  func() // closes the connection
}

// Enter gives a new stranger a place. For that, an older one may lose its place; then that one's evict is called.
func (p *Places) Enter(from netip.Addr, evict func()) *Place {
	one := &Place{places: p, source: sourceOf(from), crowd: &p.others, evict: evict}
	if p.seen.has(one.source) {
		one.crowd = &p.likely
	}
	p.mu.Lock()
	victim := one.crowd.enter(one)
	p.mu.Unlock()
	if victim != nil {
		victim.evict()
	}
	return one
}

// Leave frees the place, and reports whether the stranger had it still.
func (p *Place) Leave() bool {
	p.places.mu.Lock()
	defer p.places.mu.Unlock()
	return p.crowd.leave(p)
}

// Admit frees the place of a stranger that has turned out to be a member. Later connections from its address get a
// place more easily.
func (p *Place) Admit(member string) {
	p.Leave()
	p.places.seen.add(member, p.source)
}

// Strangers returns the number of strangers.
func (p *Places) Strangers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.others.total + p.likely.total
}

// sourceOf returns the address, or the network, that a host has for itself.
func sourceOf(a netip.Addr) netip.Prefix {
	if !a.IsValid() {
		return netip.Prefix{}
	}
	a, bits := a.Unmap().WithZone(""), 32
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits).Masked()
}
