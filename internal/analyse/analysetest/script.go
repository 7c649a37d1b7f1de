// Package analysetest writes captures of MPTCP connections, for tests of the analysis and its benchmark. A Script makes
// the packets that its caller asks for (script.go). planted.go has kinds of connections, and the findings that the
// analysis must report of each. Keys, tokens, HMACs and numbers are right, as RFC 6824 and RFC 8684 define them.
package analysetest

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
)

// Side is an end of a connection.
type Side int

// The two sides.
const (
	Client Side = iota
	Server
)

func (s Side) other() Side { return 1 - s }

// Frame is an IP packet at a time.
type Frame struct {
	At time.Duration // since the capture's begin
	IP []byte
}

// Script makes packets.
type Script struct {
	At     time.Duration // of the next packet
	Gap    time.Duration // between two packets
	Frames []Frame
	Emit   func(Frame) // gets packets in place of Frames
	ids    uint16
	random uint64
}

// New begins a script with a number that its keys and ports depend on.
func New(seed uint64) *Script {
	return &Script{random: seed*0x9e3779b97f4a7c15 + 1, Gap: 100 * time.Microsecond}
}

func (s *Script) number() uint64 {
	s.random += 0x9e3779b97f4a7c15
	z := s.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Wait lets time pass.
func (s *Script) Wait(d time.Duration) { s.At += d }

func (s *Script) send(p *packet.Packet) {
	s.ids++
	if s.ids == 0 {
		s.ids = 1
	}
	if p.V4 != nil {
		p.V4.ID = s.ids
	}
	if err := p.Seal(); err != nil {
		panic(err)
	}
	f := Frame{s.At, p.Bytes()}
	s.At += s.Gap
	if s.Emit != nil {
		s.Emit(f)
		return
	}
	s.Frames = append(s.Frames, f)
}

// Conn is a connection.
type Conn struct {
	*Script
	Version   uint8
	Checksums bool
	Keys      [2]packet.Key
	First     [2]uint64 // data sequence numbers
	Next      [2]uint64
	Received  [2]uint64 // bytes acknowledged, by the side that sent them
	Window    uint16
	Short     bool // numbers of 4 bytes
	Subflows  []*Subflow
}

// Subflow is a subflow.
type Subflow struct {
	*Conn
	Ends     [2]netip.AddrPort
	IDs      [2]uint8
	Seq      [2]uint32 // initial
	Sent     [2]uint32 // next
	Acked    [2]uint32 // by the other side
	Opener   Side
	stamps   uint32
	NoStamps bool
}

// Conn makes a connection that has sent nothing yet.
func (s *Script) Conn(version uint8) *Conn {
	c := &Conn{Script: s, Version: version, Keys: [2]packet.Key{packet.Key(s.number()), packet.Key(s.number())}, Window: 0xffff}
	for side := range c.Keys {
		c.First[side] = c.Keys[side].InitialSequence(version) + 1
	}
	c.Next, c.Received = c.First, c.First
	return c
}

// Subflow makes a subflow that has sent nothing yet.
func (c *Conn) Subflow(client, server netip.AddrPort) *Subflow {
	f := &Subflow{Conn: c, Ends: [2]netip.AddrPort{client, server}}
	for side := range f.Seq {
		f.Seq[side] = uint32(c.number())
		f.Sent[side] = f.Seq[side] + 1
		f.Acked[side] = f.Seq[side] + 1
	}
	c.Subflows = append(c.Subflows, f)
	return f
}

// Segment sends a segment with any content. Options follow the timestamps.
func (f *Subflow) Segment(from Side, flags packet.Flags, seq uint32, payload int, options ...packet.Option) {
	to := from.other()
	f.stamps++
	h := packet.TCP{Seq: seq, Ack: f.Sent[to], Flags: flags, Window: f.Window}
	if flags.Has(packet.SYN) {
		h.Options = append(h.Options, packet.MSS(1460), packet.SACKPermitted, packet.WindowScale(7), packet.NOP)
		if flags&packet.ACK == 0 {
			h.Ack = 0
		}
	} else if !f.NoStamps {
		h.Options = append(h.Options, packet.NOP, packet.NOP, packet.Timestamps(uint32(f.At/time.Millisecond), f.stamps))
	}
	h.Options = append(h.Options, options...)
	f.send(packet.Segment(f.Ends[from], f.Ends[to], h, make([]byte, payload)))
}

// Open sends the first subflow's handshake.
func (c *Conn) Open(client, server netip.AddrPort) *Subflow {
	f := c.Subflow(client, server)
	f.SYN(true)
	f.SYNACK(true)
	f.Third(true)
	return f
}

func (c *Conn) flags() uint8 {
	if c.Checksums {
		return packet.CapableHMAC | packet.CapableChecksum
	}
	return packet.CapableHMAC
}

func when(with bool, o packet.Option) []packet.Option {
	if with {
		return []packet.Option{o}
	}
	return nil
}

// SYN sends the first SYN, with MP_CAPABLE or without.
func (f *Subflow) SYN(with bool) {
	m := packet.Capable{Version: f.Version, Flags: f.flags()}
	if f.Version == 0 {
		m.Keys, m.Sender = 1, f.Keys[Client]
	}
	f.Segment(Client, packet.SYN, f.Seq[Client], 0, when(with, m.Option())...)
}

// SYNACK answers it.
func (f *Subflow) SYNACK(with bool) {
	m := packet.Capable{Version: f.Version, Flags: f.flags(), Keys: 1, Sender: f.Keys[Server]}
	f.Segment(Server, packet.SYN|packet.ACK, f.Seq[Server], 0, when(with, m.Option())...)
}

// Third sends the third ACK.
func (f *Subflow) Third(with bool) {
	m := packet.Capable{Version: f.Version, Flags: f.flags(), Keys: 2, Sender: f.Keys[Client], Receiver: f.Keys[Server]}
	f.Segment(Client, packet.ACK, f.Sent[Client], 0, when(with, m.Option())...)
}

// Join opens a subflow with the whole handshake.
func (c *Conn) Join(opener Side, client, server netip.AddrPort, id uint8) *Subflow {
	f := c.Subflow(client, server)
	f.Opener = opener
	f.IDs[opener] = id
	acceptor := opener.other()
	nonces := [2]uint32{uint32(c.number()), uint32(c.number())}
	f.Segment(opener, packet.SYN, f.Seq[opener], 0, packet.JoinSYN{AddressID: id, Token: c.Keys[acceptor].Token(c.Version), Nonce: nonces[opener]}.Option())
	sum := packet.JoinHMAC(c.Version, c.Keys[acceptor], c.Keys[opener], nonces[acceptor], nonces[opener])
	f.Segment(acceptor, packet.SYN|packet.ACK, f.Seq[acceptor], 0, packet.JoinSYNACK{HMAC: [8]byte(sum), Nonce: nonces[acceptor]}.Option())
	sum = packet.JoinHMAC(c.Version, c.Keys[opener], c.Keys[acceptor], nonces[opener], nonces[acceptor])
	f.Segment(opener, packet.ACK, f.Sent[opener], 0, packet.JoinACK{HMAC: [20]byte(sum)}.Option())
	f.Ack(acceptor)
	return f
}

// Mapping returns the DSS of data.
func (f *Subflow) Mapping(from Side, dsn uint64, seq uint32, length int, more uint16) packet.Option {
	d := packet.DSS{Flags: packet.DSSMap | packet.DSSAck | more, Sequence: dsn, Subflow: seq - f.Seq[from], Length: uint16(length), HasChecksum: f.Checksums}
	d.Ack = f.Received[from.other()]
	if f.Short {
		d.Sequence, d.Ack = uint64(uint32(d.Sequence)), uint64(uint32(d.Ack))
	} else {
		d.Flags |= packet.DSSMap8 | packet.DSSAck8
	}
	if f.Checksums {
		d.Checksum = packet.DSSChecksum(dsn, d.Subflow, d.Length, make([]byte, length))
	}
	return d.Option()
}

// Send sends new data.
func (f *Subflow) Send(from Side, n int) {
	f.Carry(from, f.Next[from], n)
	f.Next[from] += uint64(n)
}

// Carry sends data of the given numbers, as new data of the subflow. So it reinjects data that another has sent.
func (f *Subflow) Carry(from Side, dsn uint64, n int) {
	f.Segment(from, packet.ACK|packet.PSH, f.Sent[from], n, f.Mapping(from, dsn, f.Sent[from], n, 0))
	f.Sent[from] += uint32(n)
}

// Lose is Send of data that gets lost before the capture.
func (f *Subflow) Lose(from Side, n int) {
	f.Next[from] += uint64(n)
	f.Sent[from] += uint32(n)
}

// Again sends the last n bytes of the subflow again, which were data from dsn.
func (f *Subflow) Again(from Side, dsn uint64, n int) {
	seq := f.Sent[from] - uint32(n)
	f.Segment(from, packet.ACK|packet.PSH, seq, n, f.Mapping(from, dsn, seq, n, 0))
}

// Ack acknowledges all that the other side has sent, on the subflow and of the data.
func (f *Subflow) Ack(from Side) {
	other := from.other()
	f.Received[other] = f.Next[other]
	f.AckData(from, f.Next[other])
}

// AckData acknowledges all that the subflow has, and data up to a number.
func (f *Subflow) AckData(from Side, ack uint64) {
	d := packet.DSS{Flags: packet.DSSAck | packet.DSSAck8, Ack: ack}
	if f.Short {
		d.Flags, d.Ack = packet.DSSAck, uint64(uint32(ack))
	}
	f.Acked[from.other()] = f.Sent[from.other()]
	f.Segment(from, packet.ACK, f.Sent[from], 0, d.Option())
}

// Options sends options without data.
func (f *Subflow) Options(from Side, options ...packet.MPTCP) {
	var list []packet.Option
	for _, m := range options {
		list = append(list, m.Option())
	}
	f.Segment(from, packet.ACK, f.Sent[from], 0, list...)
}

// Plain sends data without MPTCP options.
func (f *Subflow) Plain(from Side, n int) {
	f.Segment(from, packet.ACK|packet.PSH, f.Sent[from], n)
	f.Sent[from] += uint32(n)
	f.Next[from] += uint64(n)
}

// DataFIN sends a DATA_FIN.
func (f *Subflow) DataFIN(from Side) {
	d := packet.DSS{Flags: packet.DSSMap | packet.DSSMap8 | packet.DSSAck | packet.DSSAck8 | packet.DSSFinish,
		Sequence: f.Next[from], Length: 1, Ack: f.Received[from.other()], HasChecksum: f.Checksums}
	f.Segment(from, packet.ACK, f.Sent[from], 0, d.Option())
	f.Next[from]++
}

// FIN ends a direction of the subflow.
func (f *Subflow) FIN(from Side) {
	f.Segment(from, packet.FIN|packet.ACK, f.Sent[from], 0)
	f.Sent[from]++
}

// Reset resets the subflow.
func (f *Subflow) Reset(from Side, options ...packet.Option) {
	f.Segment(from, packet.RST|packet.ACK, f.Sent[from], 0, options...)
}

// Close ends the connection: DATA_FINs on one subflow, then FINs on the given ones.
func (c *Conn) Close(alive ...*Subflow) {
	f := alive[0]
	f.DataFIN(Client)
	f.DataFIN(Server)
	f.Ack(Client)
	f.Ack(Server)
	for _, f := range alive {
		f.FIN(Client)
		f.FIN(Server)
		f.Segment(Client, packet.ACK, f.Sent[Client], 0)
	}
}
