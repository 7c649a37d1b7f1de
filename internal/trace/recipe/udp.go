package recipe

import (
	"context"
	"fmt"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
)

// udpData is the payload of probes by UDP. It is no packet of QUIC, WireGuard or OpenVPN, so these do not answer.
const udpData = "dcol asks whether UDP gets here"

const passUDP = "Have the firewall there pass UDP to port %d, or let the waypoint listen at a port that it passes, such as 443."

// udp asks whether datagrams get to the destination's port. A port that is open need not answer.
func udp(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	plain, err := s.syn(ctx, s.Port, packet.MSS(1460))
	if err != nil {
		return nil, err
	}
	probe, err := s.datagram(s.Port, []byte(udpData))
	if err != nil {
		return nil, err
	}
	p, err := s.trace(ctx, probe)
	if err != nil {
		return nil, err
	}
	v.see("Hops that answered SYNs: %d, UDP: %d.", answering(plain), answering(p))
	v.found(p)
	switch {
	case p.Refused != nil && p.Refused.From == s.Destination:
		return v.conclude(Good, Certain, "UDP gets through: the host answers that nothing uses port %d.", s.Port), nil
	case p.Refused != nil && plain.Answer == nil && plain.Refused != nil && plain.Refused.From == p.Refused.From:
		return v.conclude(Unknown, Likely, "The router %v answers that the host cannot be reached, by UDP and by TCP.", p.Refused.From), nil
	case p.Refused != nil:
		return v.conclude(Blocked, Certain, "UDP to port %d is refused by the router %v.", s.Port, p.Refused.From).advise(passUDP, s.Port), nil
	case p.Answer != nil:
		return v.conclude(Good, Certain, "UDP gets through: port %d answers.", s.Port), nil
	}
	last, further := reached(p), reached(plain)
	switch {
	case further > last:
		return v.conclude(Blocked, Likely, "UDP to port %d is dropped%s: sessions with waypoints, and tunnels by UDP, do not come up on this path.", s.Port, behind(plain, p)).advise(passUDP, s.Port), nil
	case last == 0:
		return v.conclude(Unknown, Open, "Nothing shows whether UDP gets through: neither SYNs nor UDP are answered on the way."), nil
	}
	return v.conclude(Unknown, Open, "UDP gets at least as far as hop %d, like SYNs. The host does not answer it, as if the port were open, or the datagram dropped.", last), nil
}

// datagram makes a packet of UDP, sealed.
func (s *Session) datagram(port uint16, payload []byte) (*packet.Packet, error) {
	p, err := s.segment(port, packet.TCP{}, payload)
	if err != nil {
		return nil, err
	}
	p.UDP, p.TCP = &packet.UDP{SrcPort: p.TCP.SrcPort, DstPort: port}, nil
	if err := p.Seal(); err != nil {
		return nil, err
	}
	return p, nil
}

// answering counts the hops that answered.
func answering(p *trace.Path) (n int) {
	for _, h := range p.Hops {
		if len(h.Quotes) > 0 {
			n++
		}
	}
	return n
}

// reached returns the distance of the last router where a probe's time to live ended, 0 if there is none.
func reached(p *trace.Path) (last int) {
	for _, h := range p.Hops {
		if slices.ContainsFunc(h.Quotes, func(q trace.Quote) bool { return q.Exceeded }) {
			last = max(last, h.Distance)
		}
	}
	return last
}

// behind names the last hop that packets like those of p are seen to reach, for the end of a sentence. It is empty if
// that shows nothing: no router that answers plain packets is further away, and the destination answers neither kind.
func behind(plain, p *trace.Path) string {
	last := reached(p)
	if reached(plain) <= last && plain.Answer == nil {
		return ""
	}
	h, ok := p.Hop(last)
	if !ok {
		return " before the first router that answers"
	}
	from, _ := h.From()
	return fmt.Sprintf(" behind hop %d (%v), the last that they are seen to reach", last, from)
}
