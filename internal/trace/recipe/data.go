package recipe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// nat looks for translated ports and addresses, for checksums in quotes that were changed back, and for an FTP
// gateway, which changes the address in a command and not back in quotes (thesis, 3.5.3).
func nat(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	p, err := s.syn(ctx, s.Port, packet.MSS(1460))
	if err != nil {
		return nil, err
	}
	v.see("%s.", capitalised(coverage(p)))
	if len(v.found(p, compare.Source, compare.TCPSource)) > 0 {
		return v.conclude(Changed, Certain, "A NAT translates this host's address or port, and leaves quotes as they are.").advise(liveWithNAT), nil
	}
	for _, f := range p.Findings {
		if f.Reverted {
			v.found(p, f.Field)
			return v.conclude(Changed, Certain, "A NAT translates this host's packets. It changes quotes back, but not the checksum in them.").advise(liveWithNAT), nil
		}
	}
	gateway, err := s.ftpGateway(ctx, v)
	if err != nil {
		return nil, err
	}
	if gateway {
		return v.conclude(Changed, Certain, "A NAT with an FTP gateway replaces the address in FTP's commands.").advise("Switch its FTP gateway off, or encrypt FTP, if transfers fail. " + liveWithNAT), nil
	}
	if private(s) {
		return v.conclude(Changed, Certain, "There is a NAT: this host's address %v is a private one, and %v is not.", s.Source, s.Destination).advise(liveWithNAT), nil
	}
	return v.conclude(Good, Likely, "No NAT is visible. One that changes quotes back perfectly would not be."), nil
}

const liveWithNAT = "Nothing for connections from here: TCP and MPTCP work through a NAT. A waypoint behind it needs a forwarded port."

// private reports whether the two ends cannot talk without a translation.
func private(s *Session) bool { return s.Source.IsPrivate() && !s.Destination.IsPrivate() }

// ftpGateway sends FTP's PORT command on a connection, and reports whether a router quotes it with another address.
func (s *Session) ftpGateway(ctx context.Context, v *Verdict) (bool, error) {
	const ftp = 21
	if !s.Source.Is4() {
		return false, nil
	}
	p, err := s.syn(ctx, ftp, packet.MSS(1460))
	if err != nil {
		return false, err
	}
	if _, ok := accepted(p); !ok {
		v.see("Port %d is answered by %s, so FTP's gateways were not looked for.", ftp, answers(p))
		return false, nil
	}
	hops := before(p)
	if len(hops) == 0 {
		return false, nil
	}
	c, err := s.connect(ctx, ftp, []packet.Option{packet.MSS(1460)}, nil)
	if errors.Is(err, errNoConnection) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer c.close()
	command := fmt.Sprintf("PORT %s,189,68\r\n", strings.ReplaceAll(s.Source.String(), ".", ","))
	q, err := c.trace(ctx, hops, packet.TCP{Flags: packet.PSH}, []byte(command))
	if err != nil {
		return false, err
	}
	return len(v.found(q, compare.Payload)) > 0, nil
}

// sequence compares the shifts of sequence numbers for several ports, and makes the server send a SACK block.
func sequence(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	const ports = 3
	var moves []int32
	var first uint16 // port
	for range ports {
		h := packet.TCP{Flags: packet.SYN, Options: []packet.Option{packet.MSS(1460), packet.SACKPermitted}}
		p, err := s.synWith(ctx, s.Port, h, func(p *packet.Packet) { first = cmp.Or(first, p.TCP.SrcPort) })
		if err != nil {
			return nil, err
		}
		for _, f := range v.found(p, compare.Seq) {
			moves = append(moves, f.Moved())
		}
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(moves)))
	if len(moves) > 0 {
		how := "by the same number for each port"
		if len(distinct) > 1 {
			how = "by another number for each port"
		}
		v.see("%d source ports: sequence numbers are moved %s (%s).", ports, how, strings.Trim(strings.ReplaceAll(fmt.Sprint(moves), " ", ", "), "[]"))
	}
	if len(moves) > 0 {
		if err := s.movesLater(ctx, v, first, moves[0]); err != nil {
			return nil, err
		}
	}
	blocks, known, err := s.sackBlocks(ctx, v)
	if err != nil {
		return nil, err
	}
	switch {
	case known && !blocks:
		return v.conclude(Changed, Certain, "Sequence numbers are changed, but not those in SACK blocks: after losses, connections wait for timeouts and lose more than half of their speed.").
			advise("Switch off the randomisation of sequence numbers in the box there (on a Cisco ASA: set connection random-sequence-number disable). Until then, switch SACK off on this host: sysctl -w net.ipv4.tcp_sack=0"), nil
	case len(moves) > 0 && known:
		return v.conclude(Changed, Certain, "Sequence numbers are changed, and those in SACK blocks with them.").advise("Nothing: connections are not harmed."), nil
	case len(moves) > 0:
		return v.conclude(Changed, Certain, "Sequence numbers are changed. Nothing shows whether those in SACK blocks are, too.").advise("Try a port at which the server accepts connections: SACK blocks that are left as they are cost more than half of the speed after losses."), nil
	}
	return v.conclude(Good, Likely, "Sequence numbers are not changed as far as routers and the server show it."), nil
}

const (
	// lookAgain is the interval at which a port's sequence numbers are checked again.
	lookAgain = 5 * time.Second
	// watched bounds the time of these checks. The boxes that the thesis found (3.4.2, figure 3.6) keep their numbers for
	// 20 s.
	watched = 25 * time.Second
)

// movesLater checks whether a port's sequence numbers are still shifted by the same number as before.
func (s *Session) movesLater(ctx context.Context, v *Verdict, port uint16, before int32) error {
	same := time.Duration(0)
	for after := lookAgain; after <= watched; after += lookAgain {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookAgain):
		}
		h := packet.TCP{Flags: packet.SYN, Options: []packet.Option{packet.MSS(1460), packet.SACKPermitted}}
		p, err := s.synWith(ctx, s.Port, h, func(p *packet.Packet) { p.TCP.SrcPort = port })
		if err != nil {
			return err
		}
		for _, f := range p.Findings {
			switch {
			case f.Field != compare.Seq:
			case f.Moved() == before:
				same = after
			default:
				v.see("The first port %.0f s later: by another number (%d). So the box keeps its number for a time only.", after.Seconds(), f.Moved())
				return nil
			}
		}
	}
	if same > 0 {
		v.see("The first port %.0f s later: by the same number (%d).", same.Seconds(), before)
	}
	return nil
}

// sackBlocks sends data behind a hole, and reports whether the server's SACK block fits it.
func (s *Session) sackBlocks(ctx context.Context, v *Verdict) (fit, known bool, err error) {
	c, err := s.connect(ctx, s.Port, []packet.Option{packet.MSS(1460), packet.SACKPermitted}, nil)
	if errors.Is(err, errNoConnection) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	defer c.close()
	if _, ok := c.first.Option(packet.KindSACKPermitted); !ok {
		v.see("The server does not use SACK.")
		return false, false, nil
	}
	data := []byte("x")
	left := c.seq + 1
	var block packet.Block
	answer, err := c.exchange(ctx, packet.TCP{Seq: left, Flags: packet.ACK}, data, func(p *packet.Packet) bool {
		for _, o := range p.TCP.Options {
			if blocks, ok := o.SACK(); ok && len(blocks) > 0 {
				block = blocks[0]
				return true
			}
		}
		return p.TCP.Flags.Has(packet.RST)
	})
	if err != nil || answer == nil || answer.TCP.Flags.Has(packet.RST) {
		return false, false, err
	}
	if block.Left != left {
		v.see("The server has a byte with number %d; the SACK block that arrives says %d.", left, block.Left)
		return false, true, nil
	}
	v.see("A SACK block of the server fits what was sent.")
	return true, true, nil
}

// payload sends text in a connection to each router that quotes whole packets.
func payload(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	p, c, err := s.open(ctx, v)
	if p == nil || err != nil {
		return v, err
	}
	defer c.close()
	data := []byte("GET /dcol-trace HTTP/1.1\r\nHost: " + s.Destination.String() + "\r\nAccept-Encoding: gzip\r\n\r\n")
	q, err := c.trace(ctx, before(p), packet.TCP{Flags: packet.PSH}, data)
	if err != nil {
		return nil, err
	}
	if len(v.found(q, compare.Payload)) > 0 {
		return v.conclude(Changed, Certain, "Data is changed on the way.").advise("Encrypt it, as by TLS: then a box cannot change it unnoticed. MPTCP falls back to TCP on such paths."), nil
	}
	return v.conclude(Good, Likely, "Data is not changed as far as hop %d, the last that quotes whole packets.", last(before(p))), nil
}

func last(hops []int) int { return hops[len(hops)-1] }

// open traces a SYN, and begins a connection to probe the routers that quote whole packets. If that is not possible,
// the path is nil and the verdict gives the reason.
func (s *Session) open(ctx context.Context, v *Verdict) (*trace.Path, *connection, error) {
	p, err := s.syn(ctx, s.Port, packet.MSS(1460))
	if err != nil {
		return nil, nil, err
	}
	v.see("A SYN is answered by %s; %s.", answers(p), coverage(p))
	if len(before(p)) == 0 {
		v.conclude(Unknown, Open, "Nothing shows what happens to data: no router quotes whole packets.")
		return nil, nil, nil
	}
	c, err := s.connect(ctx, s.Port, []packet.Option{packet.MSS(1460)}, nil)
	if errors.Is(err, errNoConnection) {
		v.conclude(Unknown, Open, "Nothing is known of data: the server accepts no connection at port %d.", s.Port)
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return p, c, nil
}

const resegmented = "Nothing for TCP, which is not harmed. If the recipe mptcp finds that data does not get through, switch off the box's normalisation of segments."

// segments sends a large segment, which may be split, and two small ones, which may be joined.
func segments(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	p, c, err := s.open(ctx, v)
	if p == nil || err != nil {
		return v, err
	}
	defer c.close()
	// A SYN+ACK's MSS bounds what may be sent; all routers quote fewer bytes than that.
	const large = 1200
	q, err := c.trace(ctx, before(p), packet.TCP{Flags: packet.PSH}, bytes.Repeat([]byte("dcol"), large/4))
	if err != nil {
		return nil, err
	}
	// Each part of a segment that was split is quoted. The first quote is compared.
	for i := range q.Hops {
		q.Hops[i].Quotes = q.Hops[i].Quotes[:min(1, len(q.Hops[i].Quotes))]
	}
	q.Locate()
	split := false
	for _, f := range v.found(q, compare.Payload, compare.Length) {
		split = split || f.Shrunk()
	}
	joined, err := s.joined(ctx, v, c, before(p))
	if err != nil {
		return nil, err
	}
	switch {
	case split && joined:
		return v.conclude(Changed, Certain, "Segments are split and joined.").advise(resegmented), nil
	case split:
		return v.conclude(Changed, Certain, "Large segments are split.").advise(resegmented), nil
	case joined:
		return v.conclude(Changed, Certain, "Small segments are joined.").advise(resegmented), nil
	}
	return v.conclude(Good, Likely, "Segments stay as they are as far as hop %d.", last(before(p))), nil
}

// joined sends a segment before each probe that continues it.
func (s *Session) joined(ctx context.Context, v *Verdict, c *connection, hops []int) (bool, error) {
	first := bytes.Repeat([]byte("1"), 40)
	second := bytes.Repeat([]byte("2"), 40)
	lead, err := c.packet(packet.TCP{Flags: packet.ACK}, first)
	if err != nil {
		return false, err
	}
	p, err := c.packet(packet.TCP{Seq: c.seq + uint32(len(first)), Flags: packet.ACK | packet.PSH}, second)
	if err != nil {
		return false, err
	}
	q, err := trace.Run(ctx, &leading{Network: s.Net, lead: lead}, p, trace.Options{Only: hops, Keep: true})
	if err != nil {
		return false, err
	}
	joined := false
	for _, f := range v.found(q, compare.Seq, compare.Payload) {
		joined = joined || f.Field == compare.Payload
	}
	return joined, nil
}

// leading sends a packet before each other one, with the same time to live.
type leading struct {
	trace.Network
	lead *packet.Packet
}

// Send sends both.
func (l *leading) Send(b []byte) error {
	p, err := packet.Parse(b)
	if err != nil {
		return err
	}
	if p.V4 != nil {
		l.lead.V4.TTL = p.V4.TTL
		l.lead.V4.ID -= 7 // not that of a probe
	} else {
		l.lead.V6.HopLimit = p.V6.HopLimit
	}
	if err := l.lead.Seal(); err != nil {
		return err
	}
	if err := l.Network.Send(l.lead.Bytes()); err != nil {
		return err
	}
	return l.Network.Send(b)
}
