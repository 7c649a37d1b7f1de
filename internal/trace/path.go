package trace

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// Path is the result of a trace.
type Path struct {
	Source, Destination netip.Addr
	Probe               *compare.Sent // of the first packet
	Hops                []Hop         // that were probed, in order
	// Distance is the number of hops to the destination, 0 if nothing shows it. Sure is set if a probe showed it;
	// otherwise Distance is the least that is possible.
	Distance int
	Sure     bool
	// Answer is the destination's first answer that is no ICMP error, nil if there was none. Another host may
	// have sent it in its name.
	Answer *Answer
	// Refused is the first ICMP error for a packet that cannot be delivered, nil if there was none.
	Refused  *Quote
	Findings []compare.Finding
	Doubts   []compare.Doubt
	// Strays counts ICMP errors about packets like the probes that fit none of them: forged, or changed beyond
	// recognition.
	Strays int
	Sent   int // packets
	Took   time.Duration
}

// Hop describes one distance on the path.
type Hop struct {
	Distance int
	Probes   int     // sent
	Quotes   []Quote // in the order of arrival
}

// Quote is an ICMP error, with its quote compared to the probe.
type Quote struct {
	From netip.Addr
	RTT  time.Duration
	// Exceeded is set if the time to live ended there. Otherwise Type and Code identify the error.
	Exceeded   bool
	Type, Code uint8
	Labels     []uint32 // of MPLS
	*compare.Comparison
}

// Answer is a packet from the destination.
type Answer struct {
	RTT    time.Duration // 0 if it is not known which probe it answers
	Packet *packet.Packet
	Bytes  []byte
}

// From returns the address of the hop that answered first, and whether one has.
func (h Hop) From() (addr netip.Addr, ok bool) {
	if len(h.Quotes) == 0 {
		return addr, false
	}
	return h.Quotes[0].From, true
}

// Hop returns the hop at a distance.
func (p *Path) Hop(distance int) (h Hop, ok bool) {
	for _, h := range p.Hops {
		if h.Distance == distance {
			return h, true
		}
	}
	return h, false
}

// FullQuotes returns the distances at which a router quotes whole packets.
func (p *Path) FullQuotes() (distances []int) {
	for _, h := range p.Hops {
		if len(h.Quotes) > 0 && h.Quotes[0].Full {
			distances = append(distances, h.Distance)
		}
	}
	return distances
}

// Silent returns the distances before the end of the path that did not answer.
func (p *Path) Silent() (distances []int) {
	for _, h := range p.Hops {
		if len(h.Quotes) == 0 && h.Distance != p.Distance {
			distances = append(distances, h.Distance)
		}
	}
	return distances
}

// Responders returns the addresses that answered, by distance.
func (p *Path) Responders() map[int]netip.Addr {
	all := map[int]netip.Addr{}
	for _, h := range p.Hops {
		if from, ok := h.From(); ok {
			all[h.Distance] = from
		}
	}
	return all
}

// Loops reports whether a router answered from several distances that are not neighbours: probes go in a circle.
func (p *Path) Loops() (at netip.Addr, ok bool) {
	last := map[netip.Addr]int{}
	for _, h := range p.Hops {
		from, answered := h.From()
		if !answered || from == p.Destination {
			continue
		}
		if before, seen := last[from]; seen && h.Distance > before+1 {
			return from, true
		}
		last[from] = h.Distance
	}
	return at, false
}

// Locate fills in the findings, from the quotes of the hops.
func (p *Path) Locate() {
	var sights []compare.Sight
	for _, h := range p.Hops {
		for _, q := range h.Quotes {
			sights = append(sights, compare.Sight{Hop: h.Distance, From: q.From, Comparison: q.Comparison})
		}
	}
	p.Findings, p.Doubts = compare.Locate(p.Probe, sights)
}
