package middlebox

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/packet"
)

// behaviours has a function for each kind except None, which leaves packets alone.
var behaviours = map[Kind]func(b *Box, p *packet.Packet, r *result){
	RemoveMPTCP: onOptions(remove, anywhere, isMPTCP),
	PadMPTCP:    onOptions(pad, anywhere, isMPTCP),
	RemoveJoins: onOptions(pad, anywhere, isJoin),
	DropJoins: func(_ *Box, p *packet.Packet, r *result) {
		if joins(p) {
			r.drop()
		}
	},
	RefuseJoins: func(b *Box, p *packet.Packet, r *result) {
		if joins(p) {
			refuse(b, p, r)
		}
	},
	RemoveDataMPTCP:  onOptions(pad, outsideSYNs, isMPTCP),
	RemoveServerDSS:  fromServer(onOptions(pad, anywhere, isDSS)),
	RemoveServerMaps: fromServer(onOptions(pad, withData, isDSS)),
	RemoveServerJoin: fromServer(onOptions(pad, anywhere, isJoin)),
	RemoveUnknown:    onOptions(pad, inSYNs, isUnknown),
	DropUnknown: func(_ *Box, p *packet.Packet, r *result) {
		if p.TCP != nil && inSYNs(p) && slices.ContainsFunc(p.TCP.Options, isUnknown) {
			r.drop()
		}
	},
	RemoveScale:      onOptions(pad, inSYNs, func(o packet.Option) bool { return o.Kind == packet.KindWindowScale }),
	RemoveTimestamps: onOptions(pad, anywhere, func(o packet.Option) bool { return o.Kind == packet.KindTimestamps }),
	ClampMSS:         clampMSS,
	AddMSS:           addMSS,
	RandomiseSeq:     func(b *Box, p *packet.Packet, r *result) { moveSeq(b, p, r, true) },
	RandomiseSeqOnly: func(b *Box, p *packet.Packet, r *result) { moveSeq(b, p, r, false) },
	ClearECN:         clearECN,
	Split:            split,
	Join:             join,
	ChangePayload:    changePayload,
	FTPGateway:       ftpGateway,
	NAT:              func(b *Box, p *packet.Packet, r *result) { translate(b, p, r, true) },
	NATOpaque:        func(b *Box, p *packet.Packet, r *result) { translate(b, p, r, false) },
	Proxy:            proxy,
	Refuse:           refuse,
	EchoOptions:      echoOptions,
}

func anywhere(*packet.Packet) bool      { return true }
func inSYNs(p *packet.Packet) bool      { return p.TCP.Flags.Has(packet.SYN) }
func outsideSYNs(p *packet.Packet) bool { return !p.TCP.Flags.Has(packet.SYN) }
func withData(p *packet.Packet) bool    { return len(p.Payload) > 0 }

func isMPTCP(o packet.Option) bool { return o.Kind == packet.KindMPTCP }

func isJoin(o packet.Option) bool {
	sub, ok := o.Subtype()
	return ok && sub == packet.SubtypeJoin
}

func isDSS(o packet.Option) bool {
	sub, ok := o.Subtype()
	return ok && sub == packet.SubtypeDSS
}

// joins reports whether a packet is a SYN that joins a connection of MPTCP.
func joins(p *packet.Packet) bool {
	return p.TCP != nil && inSYNs(p) && slices.ContainsFunc(p.TCP.Options, isJoin)
}

// isUnknown reports whether an option is not among the classic ones, which every firewall knows.
func isUnknown(o packet.Option) bool {
	switch o.Kind {
	case packet.KindEnd, packet.KindNOP, packet.KindMSS, packet.KindWindowScale, packet.KindSACKPermitted, packet.KindSACK, packet.KindTimestamps:
		return false
	}
	return true
}

// remove takes options out. pad overwrites them.
func remove(options []packet.Option, match func(packet.Option) bool) []packet.Option {
	return slices.DeleteFunc(options, match)
}

func pad(options []packet.Option, match func(packet.Option) bool) (padded []packet.Option) {
	for _, o := range options {
		if !match(o) {
			padded = append(padded, o)
			continue
		}
		for range o.Size() {
			padded = append(padded, packet.NOP)
		}
	}
	return padded
}

func onOptions(how func([]packet.Option, func(packet.Option) bool) []packet.Option, where func(*packet.Packet) bool,
	match func(packet.Option) bool,
) func(*Box, *packet.Packet, *result) {
	return func(_ *Box, p *packet.Packet, r *result) {
		if p.TCP == nil || !where(p) || !slices.ContainsFunc(p.TCP.Options, match) {
			return
		}
		p.TCP.Options = how(slices.Clone(p.TCP.Options), match)
		r.change()
	}
}

// fromServer limits a behaviour to packets of the host that accepted the connection.
func fromServer(pass func(*Box, *packet.Packet, *result)) func(*Box, *packet.Packet, *result) {
	return func(b *Box, p *packet.Packet, r *result) {
		if p.TCP == nil {
			return
		}
		if _, forward := b.state.of(p); !forward {
			pass(b, p, r)
		}
	}
}

// clamped is the segment size that boxes set, as of a tunnel.
const clamped = 1380

func clampMSS(_ *Box, p *packet.Packet, r *result) {
	if p.TCP == nil || !inSYNs(p) {
		return
	}
	for i, o := range p.TCP.Options {
		if size, ok := o.MSS(); ok && size > clamped {
			p.TCP.Options[i] = packet.MSS(clamped)
			r.change()
			return
		}
	}
}

func addMSS(_ *Box, p *packet.Packet, r *result) {
	if p.TCP == nil || !inSYNs(p) {
		return
	}
	if _, ok := p.TCP.Option(packet.KindMSS); ok {
		return
	}
	p.TCP.Options = append([]packet.Option{packet.MSS(clamped)}, p.TCP.Options...)
	r.change()
}

func moveSeq(b *Box, p *packet.Packet, r *result, blocks bool) {
	if p.TCP == nil {
		return
	}
	m, forward := b.state.of(p)
	if forward {
		p.TCP.Seq += m.moved
	} else if p.TCP.Flags.Has(packet.ACK) {
		p.TCP.Ack -= m.moved
		for i, o := range p.TCP.Options {
			if list, ok := o.SACK(); ok && blocks {
				for j := range list {
					list[j].Left -= m.moved
					list[j].Right -= m.moved
				}
				p.TCP.Options[i] = packet.SACK(list...)
			}
		}
	}
	r.change()
}

// moveSeqBy is moveSeq by the same number for all connections, without SACK blocks.
func moveSeqBy(b *Box, p *packet.Packet, r *result, offset uint32) {
	if p.TCP == nil {
		return
	}
	m, _ := b.state.of(p)
	m.moved = offset
	moveSeq(b, p, r, false)
}

func clearECN(_ *Box, p *packet.Packet, r *result) {
	const marks = 3
	const flags = packet.ECE | packet.CWR | packet.AE
	var tos *uint8
	if p.V4 != nil {
		tos = &p.V4.TOS
	} else {
		tos = &p.V6.Class
	}
	tcp := p.TCP != nil && inSYNs(p) && p.TCP.Flags&flags != 0
	if *tos&marks == 0 && !tcp {
		return
	}
	*tos &^= marks
	if tcp {
		p.TCP.Flags &^= flags
	}
	r.change()
}

// largest is the payload that a splitting box lets pass.
const largest = 536

func split(_ *Box, p *packet.Packet, r *result) {
	if p.TCP == nil || len(p.Payload) <= largest {
		return
	}
	for at := 0; at < len(p.Payload); at += largest {
		part := *p
		h := *p.TCP
		end := min(len(p.Payload), at+largest)
		part.Payload, part.TCP = p.Payload[at:end], &h
		h.Seq += uint32(at)
		if end < len(p.Payload) {
			h.Flags &^= packet.PSH | packet.FIN
		}
		ip := copyIP(p)
		part.V4, part.V6 = ip.V4, ip.V6
		r.replace(&part)
	}
}

func copyIP(p *packet.Packet) (c packet.Packet) {
	if p.V4 != nil {
		h := *p.V4
		c.V4 = &h
	} else {
		h := *p.V6
		c.V6 = &h
	}
	return c
}

// join holds a small segment without PSH, and joins it with the next one. A missing PSH announces more data.
func join(b *Box, p *packet.Packet, r *result) {
	if p.TCP == nil || inSYNs(p) {
		return
	}
	const most = 1400
	m, forward := b.state.of(p)
	if !forward {
		return
	}
	first := m.held
	m.held = nil
	if first != nil {
		next := first.TCP.Seq + uint32(len(first.Payload))
		if len(p.Payload) > 0 && p.TCP.Seq == next && len(first.Payload)+len(p.Payload) <= most {
			p.Payload = slices.Concat(first.Payload, p.Payload)
			p.TCP.Seq = first.TCP.Seq
			r.change()
			return
		}
		r.replace(first, p)
		return
	}
	if len(p.Payload) > 0 && len(p.Payload) <= most/2 && !p.TCP.Flags.Has(packet.PSH) && !p.TCP.Flags.Has(packet.FIN) {
		m.held = p
		r.drop()
	}
}

// changePayload overwrites the name of HTTP's field Accept-Encoding, so that servers do not compress. The length stays.
func changePayload(_ *Box, p *packet.Packet, r *result) {
	const field, instead = "Accept-Encoding:", "X-cept-Encoding:"
	if p.TCP == nil || !bytes.Contains(p.Payload, []byte(field)) {
		return
	}
	p.Payload = bytes.ReplaceAll(p.Payload, []byte(field), []byte(instead))
	r.change()
}

// outside is the address that boxes without one of their own use in payloads.
var outside = netip.MustParseAddr("203.0.113.77")

// ftpGateway replaces the address in PORT commands, which may take more or fewer bytes, and moves the sequence
// numbers behind them.
func ftpGateway(b *Box, p *packet.Packet, r *result) {
	const ftp = 21
	if p.TCP == nil || p.TCP.DstPort != ftp && p.TCP.SrcPort != ftp {
		return
	}
	m, forward := b.state.of(p)
	if !forward {
		if m.changed && p.TCP.Flags.Has(packet.ACK) && int32(p.TCP.Ack-m.behind) > 0 {
			p.TCP.Ack -= m.grown
			r.change()
		}
		return
	}
	text, ok := strings.CutPrefix(string(p.Payload), "PORT ")
	parts := strings.Split(strings.TrimRight(text, "\r\n"), ",")
	if !ok || len(parts) != 6 {
		if m.changed && int32(p.TCP.Seq-m.behind) >= 0 {
			p.TCP.Seq += m.grown
			r.change()
		}
		return
	}
	address := strings.ReplaceAll(outside.String(), ".", ",")
	payload := []byte(fmt.Sprintf("PORT %s,%s,%s\r\n", address, parts[4], parts[5]))
	if bytes.Equal(payload, p.Payload) {
		return
	}
	m.changed, m.behind, m.grown = true, p.TCP.Seq+uint32(len(p.Payload)), uint32(len(payload)-len(p.Payload))
	p.Payload = payload
	r.change()
}
