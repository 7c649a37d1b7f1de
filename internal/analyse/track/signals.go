package track

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
)

// maxSignals bounds the signals of a connection that are kept, because a host could announce addresses forever.
const maxSignals = 256

// signal is an ADD_ADDR, REMOVE_ADDR or MP_PRIO.
type signal struct {
	kind    string
	at      int64
	from    Side
	ids     []uint8
	address netip.Addr
	port    uint16
	backup  bool
	echoed  int64
	repeats int
	over    int64 // when a different signal of its kind and address ID followed; 0: none
	on      *subflow
	data    uint64 // of on, when the signal came
	hmac    verdict
}

// Kinds of signals.
const (
	AddAddr    = "ADD_ADDR"
	RemoveAddr = "REMOVE_ADDR"
	Priority   = "MP_PRIO"
)

// signals handles the options of a packet but DSS.
func (t *Tracker) signals(s *subflow, p *Packet, from Side) {
	c := s.c
	for rest := p.Others[:p.OthersLen]; len(rest) > 0; {
		var o packet.Option
		o, rest = p.Other(rest)
		m, err := o.MPTCP()
		if err != nil {
			c.anomaly.badOption++
			continue
		}
		switch m := m.(type) {
		case packet.Capable:
			t.capable(s, p, from, m)
		case packet.JoinSYN:
			s.joinSYN(from, m)
		case packet.JoinSYNACK:
			s.joinSYNACK(from, m)
		case packet.JoinACK:
			s.joinACK(from, m)
		case packet.AddAddr:
			c.addAddr(p.Time, s, from, m)
		case packet.RemoveAddr:
			c.removeAddr(p.Time, s, from, m)
		case packet.Priority:
			c.priority(p.Time, s, from, m)
		case packet.Fail:
			s.fail(p, from)
		case packet.FastClose:
			c.fastClose = true
		case packet.Reset:
			if s.reason < 0 {
				s.reason = int(m.Reason)
			}
		case packet.MPUnknown:
			c.anomaly.badOption++
		}
	}
}

func (c *connection) addAddr(at int64, on *subflow, from Side, m packet.AddAddr) {
	echo := m.Version > 0 && m.Flags&packet.AddAddrEcho != 0
	sender := from
	if echo {
		sender = from.other()
	}
	if known := c.announcement(sender, m); known != nil {
		switch {
		case echo:
			if known.echoed == 0 {
				known.echoed = at
			}
			return
		case !c.signalled(RemoveAddr, sender, m.AddressID, known):
			known.repeats++
			return
		}
		known.over = at
	}
	if echo {
		return // of one that the capture lacks
	}
	g := &signal{kind: AddAddr, at: at, from: from, ids: []uint8{m.AddressID}, address: m.Address, port: m.Port, on: on}
	if m.Version > 0 && c.keyKnown[Client] && c.keyKnown[Server] {
		g.hmac = wrong
		if m.Authenticator(c.key[from], c.key[from.other()]) == m.HMAC {
			g.hmac = right
		} else {
			c.anomaly.wrongHMAC++
		}
	}
	c.keep(g)
}

func (c *connection) removeAddr(at int64, on *subflow, from Side, m packet.RemoveAddr) {
	for _, known := range slices.Backward(c.signals) {
		if known.kind == RemoveAddr && known.from == from && string(known.ids) == string(m.AddressIDs) {
			if slices.ContainsFunc(m.AddressIDs, func(id uint8) bool { return c.usedSince(from, id, known) }) {
				break
			}
			known.repeats++
			return
		}
	}
	c.keep(&signal{kind: RemoveAddr, at: at, from: from, ids: append([]uint8(nil), m.AddressIDs...), on: on})
	for _, s := range c.subflows {
		for _, id := range m.AddressIDs {
			if s.id(from) == id && s.removed == 0 && s.end == open {
				s.removed = at
			}
		}
	}
}

// announcement returns the latest ADD_ADDR of an address.
func (c *connection) announcement(from Side, m packet.AddAddr) *signal {
	for _, g := range slices.Backward(c.signals) {
		if g.kind == AddAddr && g.from == from && g.ids[0] == m.AddressID && g.address == m.Address && g.port == m.Port {
			return g
		}
	}
	return nil
}

// signalled reports whether a side has sent a signal of a kind with an address ID after another one.
func (c *connection) signalled(kind string, from Side, id uint8, after *signal) bool {
	for _, g := range slices.Backward(c.signals) {
		if g == after {
			return false
		}
		if g.kind == kind && g.from == from && slices.Contains(g.ids, id) {
			return true
		}
	}
	return false
}

// usedSince reports whether, after its removal, an address ID was announced, or a subflow with it began.
func (c *connection) usedSince(of Side, id uint8, removal *signal) bool {
	return c.signalled(AddAddr, of, id, removal) || slices.ContainsFunc(c.subflows, func(s *subflow) bool {
		return s.join && s.id(of) == id && s.began() > removal.at
	})
}

// id returns the address ID of a subflow's end. That of the first subflow is 0.
func (s *subflow) id(of Side) uint8 {
	if s.idKnown[of] {
		return s.addressID[of]
	}
	if s.join {
		return 255 // unknown
	}
	return 0
}

func (c *connection) priority(at int64, on *subflow, from Side, m packet.Priority) {
	backup := m.Flags&packet.Backup != 0
	target := on
	if m.HasAddressID {
		for _, s := range c.subflows {
			if s.id(from) == m.AddressID && s.end == open {
				target = s
			}
		}
	}
	if n := len(c.signals); n > 0 {
		last := c.signals[n-1]
		if last.kind == Priority && last.from == from && last.on == target && last.backup == backup {
			last.repeats++
			return
		}
	}
	target.backup = backup
	c.keep(&signal{kind: Priority, at: at, from: from, ids: []uint8{target.id(from)}, backup: backup, on: target, data: target.data()})
}

func (s *subflow) data() uint64 { return s.half[Client].newBytes + s.half[Server].newBytes }

func (c *connection) keep(g *signal) {
	if len(c.signals) < maxSignals {
		c.signals = append(c.signals, g)
	}
}

// fail handles MP_FAIL: with a RST, or on one of several subflows, it ends this subflow only (RFC 8684, 3.7).
func (s *subflow) fail(p *Packet, _ Side) {
	s.failed = true
	c := s.c
	if p.Flags.Has(packet.RST) || !s.alone() {
		return
	}
	if !c.fallback.fail {
		c.fallback.fail, c.fallback.failTime = true, p.Time
	}
}
