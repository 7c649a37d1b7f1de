package recipe

import (
	"context"
	"errors"

	"github.com/detour-collective/dcol/internal/packet"
)

// multipathConnection is a connection of MPTCP with its first subflow.
type multipathConnection struct {
	*connection
	mine, theirs packet.Key
	checksums    bool // DSS has them, as the server requires
	noJoins      bool // the server refuses further subflows to its address (RFC 8684, 3.1, flag C)
	sent         int  // bytes of data
	back         download
	reset        bool // by the server
}

// connectMultipath begins a connection of MPTCP.
func (s *Session) connectMultipath(ctx context.Context) (*multipathConnection, error) {
	m := &multipathConnection{mine: packet.Key(s.Random.Uint64())}
	var err error
	m.connection, err = s.connect(ctx, s.Port, []packet.Option{packet.MSS(1460), capable()}, func(h *packet.TCP) []packet.Option {
		m.theirs, _ = key(h)
		for _, o := range h.Options {
			if c, ok := capableOf(o); ok {
				m.checksums, m.noJoins = c.Flags&packet.CapableChecksum != 0, c.Flags&packet.CapableNoJoin != 0
			}
		}
		return []packet.Option{m.keys().Option()}
	})
	if err != nil {
		return nil, err
	}
	m.back = download{first: m.first.Seq, initial: m.theirs.InitialSequence(1)}
	return m, nil
}

// keys is the option of the third ACK.
func (m *multipathConnection) keys() packet.Capable {
	c := packet.Capable{Version: 1, Flags: packet.CapableHMAC, Keys: 2, Sender: m.mine, Receiver: m.theirs}
	if m.checksums {
		c.Flags |= packet.CapableChecksum
	}
	return c
}

// mapped is the option of data that is sent next.
func (m *multipathConnection) mapped(data []byte) packet.DSS {
	d := packet.DSS{
		Flags:    packet.DSSAck | packet.DSSAck8 | packet.DSSMap | packet.DSSMap8,
		Ack:      m.theirs.InitialSequence(1) + 1,
		Sequence: m.mine.InitialSequence(1) + 1 + uint64(m.sent), Subflow: uint32(1 + m.sent), Length: uint16(len(data)),
	}
	if m.checksums {
		d.HasChecksum, d.Checksum = true, packet.DSSChecksum(d.Sequence, d.Subflow, d.Length, data)
	}
	return d
}

// segmentOf is the header of data that is sent next, which DSS maps.
func (m *multipathConnection) segmentOf(data []byte) packet.TCP {
	h := packet.TCP{Seq: m.seq + uint32(m.sent), Flags: packet.ACK | packet.PSH}
	if !m.checksums {
		h.Options = append(h.Options, packet.NOP, packet.NOP) // to a multiple of 4 bytes
	}
	h.Options = append(h.Options, m.mapped(data).Option())
	return h
}

// deliver sends data, and reports whether the server acknowledges it by a data acknowledgement. The first data has both
// keys in place of DSS (RFC 8684, 3.1).
func (m *multipathConnection) deliver(ctx context.Context, data []byte) (acked bool, err error) {
	h := m.segmentOf(data)
	if m.sent == 0 {
		d, k := m.mapped(data), m.keys()
		k.HasLength, k.Length, k.HasChecksum, k.Checksum = true, d.Length, d.HasChecksum, d.Checksum
		h.Options = []packet.Option{k.Option()}
	}
	m.sent += len(data)
	end := uint32(m.mine.InitialSequence(1)) + 1 + uint32(m.sent)
	_, err = m.exchange(ctx, h, data, func(p *packet.Packet) bool {
		m.take(p)
		d, ok := dssOf(p.TCP)
		upTo := uint32(d.Ack) // the server may send its low four bytes, or all eight
		acked = acked || ok && d.Flags&packet.DSSAck != 0 && upTo == end
		return acked || m.reset
	})
	return acked, err
}

// take handles a segment of the server.
func (m *multipathConnection) take(p *packet.Packet) {
	m.back.take(p)
	m.reset = m.reset || p.TCP.Flags.Has(packet.RST)
}

// receive waits for data of the server.
func (m *multipathConnection) receive(ctx context.Context) error {
	const tries = 2
	for try := 0; try < tries && !m.reset && !m.back.arrived(); try++ {
		if _, err := m.await(ctx, func(p *packet.Packet) bool {
			m.take(p)
			return m.reset || m.back.arrived()
		}); err != nil {
			return err
		}
	}
	return nil
}

// joined is the server's answer to the SYN of a second subflow.
type joined int

const (
	refused  joined = iota // no SYN+ACK: a server may have as many subflows as it allows
	stripped               // a SYN+ACK without MP_JOIN
	forged                 // MP_JOIN does not have the HMAC that it should have
	right                  // MP_JOIN as it should be
)

// join begins a second subflow of the connection, from another port, and ends it.
func (m *multipathConnection) join(ctx context.Context) (joined, error) {
	nonce := m.s.Random.Uint32()
	syn := packet.JoinSYN{AddressID: 1, Token: m.theirs.Token(1), Nonce: nonce}
	answer := stripped
	c, err := m.s.connect(ctx, m.port, []packet.Option{packet.MSS(1460), syn.Option()}, func(h *packet.TCP) []packet.Option {
		for _, o := range h.Options {
			content, err := o.MPTCP()
			j, ok := content.(packet.JoinSYNACK)
			if err != nil || !ok {
				continue
			}
			if answer = forged; j.HMAC == [8]byte(packet.JoinHMAC(1, m.theirs, m.mine, j.Nonce, nonce)) {
				answer = right
			}
			return []packet.Option{packet.JoinACK{HMAC: [20]byte(packet.JoinHMAC(1, m.mine, m.theirs, nonce, j.Nonce))}.Option()}
		}
		return nil
	})
	if errors.Is(err, errNoConnection) {
		return refused, nil
	}
	if err != nil {
		return refused, err
	}
	c.close()
	return answer, nil
}

func dssOf(h *packet.TCP) (packet.DSS, bool) {
	for _, o := range h.Options {
		if d, ok := o.DSS(); ok {
			return d, true
		}
	}
	return packet.DSS{}, false
}

func capableOf(o packet.Option) (packet.Capable, bool) {
	content, err := o.MPTCP()
	c, ok := content.(packet.Capable)
	return c, ok && err == nil
}
