package recipe

import (
	"context"
	"fmt"
	"strings"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

func capitalised(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

const keepMSS = "Nothing: it keeps packets small enough for a link behind, and every host understands it."

func mss(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	with, err := s.syn(ctx, s.Port, packet.MSS(1460))
	if err != nil {
		return nil, err
	}
	without, err := s.syn(ctx, s.Port)
	if err != nil {
		return nil, err
	}
	v.see("%s.", capitalised(coverage(with)))
	changed, added := v.found(with, compare.MSS), v.found(without, compare.MSS)
	if len(changed) > 0 && changed[0].Kind() == compare.Changed {
		if mtu, link := leastLink(changed[0].Seen.Text, s.Destination.Is6()); link != "" {
			v.see("An MSS of %s fits an MTU of %d: %s.", changed[0].Seen.Text, mtu, link)
		}
	}
	if h, ok := accepted(with); ok {
		if o, ok := h.Option(packet.KindMSS); ok {
			size, _ := o.MSS()
			v.see("The SYN+ACK has an MSS of %d.", size)
		}
	}
	switch {
	case len(changed) > 0 && len(added) > 0:
		return v.conclude(Changed, Certain, "The maximum segment size is changed, and added where it is missing.").advise(keepMSS), nil
	case len(changed) > 0:
		return v.conclude(Changed, Certain, "The maximum segment size is %s: a router before a smaller MTU, such as a tunnel, does that.", changedTo(changed[0])).advise(keepMSS), nil
	case len(added) > 0:
		return v.conclude(Changed, Certain, "A maximum segment size is added to SYNs without one.").advise(keepMSS), nil
	case len(with.FullQuotes()) == 0:
		return v.conclude(Unknown, Open, "Nothing shows what happens to the maximum segment size: no router quotes whole packets."), nil
	}
	return v.conclude(Good, Likely, "The maximum segment size is not changed as far as routers show it."), nil
}

func changedTo(f compare.Finding) string {
	if f.Kind() == compare.Removed {
		return "removed"
	}
	return fmt.Sprintf("changed from %s to %s", f.Sent.Text, f.Seen.Text)
}

func ecn(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	const flags = packet.SYN | packet.ECE | packet.CWR
	h := packet.TCP{Flags: flags, Options: []packet.Option{packet.MSS(1460)}}
	mark := func(p *packet.Packet) {
		const capableTransport = 2
		if p.V4 != nil {
			p.V4.TOS = capableTransport
		} else {
			p.V6.Class = capableTransport
		}
	}
	plain, err := s.syn(ctx, s.Port, packet.MSS(1460))
	if err != nil {
		return nil, err
	}
	p, err := s.synWith(ctx, s.Port, h, mark)
	if err != nil {
		return nil, err
	}
	v.see("A plain SYN is answered by %s, one with ECN by %s; %s.", answers(plain), answers(p), coverage(p))
	if len(v.found(p, compare.ECN, compare.ECNFlags)) > 0 {
		return v.conclude(Changed, Certain, "ECN is cleared or changed on the way: congestion cannot be notified.").advise("Have the box there pass ECN's bits and flags. Connections work without, but lose packets where they could have been warned."), nil
	}
	answer, ok := accepted(p)
	switch {
	case plain.Answer != nil && p.Answer == nil:
		return v.conclude(Blocked, Likely, "SYNs with ECN are dropped.").advise("Set net.ipv4.tcp_ecn to 0 or 2 on this host, so that connections begin without delay, or have the box there pass SYNs with ECN."), nil
	case ok && answer.Flags.Has(packet.ECE):
		return v.conclude(Good, Certain, "ECN gets through, and the server uses it."), nil
	case ok:
		return v.conclude(Good, Likely, "ECN gets through as far as routers show it; the server does not use it for this connection."), nil
	}
	return v.conclude(Unknown, Open, "No router saw ECN changed; the server accepts no connection at port %d.", s.Port), nil
}

const passProxy = "Have its operator leave out these connections, or use a detour that avoids it. It sees what is not encrypted, and MPTCP ends at it."

// proxy compares the distance at which SYNs to several ports are answered. A router that answers a SYN to one port
// nearer than to another answers in the server's place.
func proxy(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	const ftp = 21
	other := uint16(ftp)
	if s.Port == ftp {
		other = 80
	}
	a, err := s.syn(ctx, s.Port, packet.MSS(1460))
	if err != nil {
		return nil, err
	}
	b, err := s.syn(ctx, other, packet.MSS(1460))
	if err != nil {
		return nil, err
	}
	ping, err := s.ping(ctx)
	if err != nil {
		return nil, err
	}
	v.see("Port %d: %s at %s. Port %d: %s at %s. Ping: the host is at %s.", s.Port, answers(a), hops(a), other, answers(b), hops(b), hops(ping))
	for _, p := range []*trace.Path{a, b} {
		if at, ok := p.Loops(); ok {
			v.see("Probes go in a circle at %v.", at)
		}
	}
	for _, far := range []*trace.Path{b, ping} {
		if near, ok := nearer(a, far); ok {
			return v.conclude(Changed, near, "Something answers in the server's place at hop %d: other packets go %d hops further, through the same routers.", a.Distance, far.Distance-a.Distance).advise(passProxy), nil
		}
	}
	if near, ok := nearer(b, ping); ok {
		return v.conclude(Changed, near, "Something answers connections to port %d in the server's place at hop %d: pings go %d hops further.", other, b.Distance, ping.Distance-b.Distance).advise(passProxy), nil
	}
	if a.Distance > 0 && a.Distance == ping.Distance || a.Distance > 0 && a.Distance == b.Distance {
		return v.conclude(Good, Likely, "The server itself answers: all packets go as far as those to port %d.", s.Port), nil
	}
	return v.conclude(Unknown, Open, "The paths of packets to several ports cannot be compared: the server does not answer enough of them."), nil
}

func hops(p *trace.Path) string {
	if p.Distance == 0 {
		return "an unknown distance"
	}
	return fmt.Sprintf("hop %d", p.Distance)
}

// nearer reports whether one path ends before another one that goes through the same routers. It is likely only if
// the routers behind did not answer, because load balancing might explain it.
func nearer(near, far *trace.Path) (Confidence, bool) {
	if near.Distance == 0 || far.Distance == 0 || near.Distance >= far.Distance {
		return Open, false
	}
	ours, theirs := near.Responders(), far.Responders()
	for d := 1; d < near.Distance; d++ {
		if ours[d].IsValid() && theirs[d].IsValid() && ours[d] != theirs[d] {
			return Open, false // another way, whose length says nothing
		}
	}
	if near.Sure && far.Sure {
		return Certain, true
	}
	return Likely, true
}

// ping traces with echo requests.
func (s *Session) ping(ctx context.Context) (*trace.Path, error) {
	p := &packet.Packet{ICMP: &packet.ICMP{Type: trace.EchoRequest, Data: [4]byte{byte(s.Random.Uint32()), byte(s.Random.Uint32()), 0, 1}}}
	if s.Source.Is4() {
		p.V4 = &packet.IPv4{TTL: 64, Src: s.Source, Dst: s.Destination, ID: uint16(s.Random.IntN(0xf000) + 1)}
	} else {
		p.ICMP.Type = trace.V6EchoRequest
		p.V6 = &packet.IPv6{HopLimit: 64, Src: s.Source, Dst: s.Destination}
	}
	if err := p.Seal(); err != nil {
		return nil, err
	}
	return s.trace(ctx, p)
}
