package packet

import (
	"encoding/binary"
	"net/netip"
)

// Subtype is the subtype of an MPTCP option (RFC 8684, 7.2).
type Subtype uint8

// Subtypes of MPTCP options.
const (
	SubtypeCapable    Subtype = 0x0
	SubtypeJoin       Subtype = 0x1
	SubtypeDSS        Subtype = 0x2
	SubtypeAddAddr    Subtype = 0x3
	SubtypeRemoveAddr Subtype = 0x4
	SubtypePriority   Subtype = 0x5
	SubtypeFail       Subtype = 0x6
	SubtypeFastClose  Subtype = 0x7
	SubtypeReset      Subtype = 0x8
)

// MPTCP is the content of an MPTCP option: one of the types below. Their fields for flags also keep reserved bits, so
// that Option returns the same bytes.
type MPTCP interface {
	Option() Option
}

// Subtype returns the subtype of an MPTCP option.
func (o Option) Subtype() (s Subtype, ok bool) {
	if o.Kind != KindMPTCP || len(o.Data) < 1 {
		return 0, false
	}
	return Subtype(o.Data[0] >> 4), true
}

// MPTCP decodes an MPTCP option of version 0 or 1. It returns an unknown subtype as MPUnknown.
func (o Option) MPTCP() (MPTCP, error) {
	subtype, ok := o.Subtype()
	if !ok {
		return nil, malformed("not an MPTCP option")
	}
	var m MPTCP
	switch subtype {
	case SubtypeCapable:
		m, ok = parseCapable(o.Data)
	case SubtypeJoin:
		m, ok = parseJoin(o.Data)
	case SubtypeDSS:
		m, ok = o.DSS()
	case SubtypeAddAddr:
		m, ok = parseAddAddr(o.Data)
	case SubtypeRemoveAddr:
		m, ok = parseRemoveAddr(o.Data)
	case SubtypePriority:
		m, ok = parsePriority(o.Data)
	case SubtypeFail:
		m, ok = parseFail(o.Data)
	case SubtypeFastClose:
		m, ok = parseFastClose(o.Data)
	case SubtypeReset:
		m, ok = parseReset(o.Data)
	default:
		return MPUnknown{o.Data}, nil
	}
	if !ok {
		return nil, malformed("MPTCP option of subtype %d with a length of %d", subtype, o.Size())
	}
	return m, nil
}

// Flags of Capable (RFC 8684, 3.1).
const (
	CapableChecksum = 0x80 // A: checksums are required
	CapableExtend   = 0x40 // B
	CapableNoJoin   = 0x20 // C: no subflows to this address and port
	CapableHMAC     = 0x01 // H: HMAC-SHA1 in version 0, HMAC-SHA256 in version 1
)

// Capable is MP_CAPABLE (RFC 8684, 3.1; RFC 6824, 3.1). The number of keys depends on the segment. In version 1, a SYN
// has none, a SYN+ACK one, the third ACK and the first data two. In version 0, SYN and SYN+ACK have one.
type Capable struct {
	Version          uint8
	Flags            uint8
	Keys             int // 0 to 2
	Sender, Receiver Key
	HasLength        bool   // with first data
	Length           uint16 // of the data
	HasChecksum      bool
	Checksum         uint16
}

func parseCapable(b []byte) (c Capable, ok bool) {
	if len(b) < 2 {
		return c, false
	}
	c = Capable{Version: b[0] & 0xf, Flags: b[1]}
	switch b = b[2:]; {
	case len(b) == 0 && c.Version > 0:
		return c, true
	case len(b) == 8:
		c.Keys, c.Sender = 1, Key(binary.BigEndian.Uint64(b))
		return c, true
	case len(b) < 16, len(b) > 16 && c.Version == 0:
		return c, false
	}
	c.Keys, c.Sender, c.Receiver = 2, Key(binary.BigEndian.Uint64(b)), Key(binary.BigEndian.Uint64(b[8:]))
	switch b = b[16:]; len(b) {
	case 4:
		c.HasChecksum, c.Checksum = true, binary.BigEndian.Uint16(b[2:])
		fallthrough
	case 2:
		c.HasLength, c.Length = true, binary.BigEndian.Uint16(b)
	}
	return c, len(b) == 0 || c.HasLength
}

// Option returns the encoded option.
func (c Capable) Option() Option {
	b := append(make([]byte, 0, 22), byte(SubtypeCapable)<<4|c.Version&0xf, c.Flags)
	if c.Keys > 0 {
		b = binary.BigEndian.AppendUint64(b, uint64(c.Sender))
	}
	if c.Keys > 1 {
		b = binary.BigEndian.AppendUint64(b, uint64(c.Receiver))
	}
	if c.HasLength {
		b = binary.BigEndian.AppendUint16(b, c.Length)
	}
	if c.HasLength && c.HasChecksum {
		b = binary.BigEndian.AppendUint16(b, c.Checksum)
	}
	return Option{KindMPTCP, b}
}

// Backup is the flag B of joins and priorities: no data should be sent while other subflows work.
const Backup = 0x1

// JoinSYN is MP_JOIN in a SYN (RFC 8684, 3.2).
type JoinSYN struct {
	Flags     uint8 // 4 bits
	AddressID uint8
	Token     uint32 // the receiver's
	Nonce     uint32
}

// JoinSYNACK is MP_JOIN in a SYN+ACK.
type JoinSYNACK struct {
	Flags     uint8 // 4 bits
	AddressID uint8
	HMAC      [8]byte
	Nonce     uint32
}

// JoinACK is MP_JOIN in the third ACK.
type JoinACK struct {
	Reserved uint16 // 12 bits
	HMAC     [20]byte
}

func parseJoin(b []byte) (MPTCP, bool) {
	switch len(b) {
	case 10:
		return JoinSYN{b[0] & 0xf, b[1], binary.BigEndian.Uint32(b[2:]), binary.BigEndian.Uint32(b[6:])}, true
	case 14:
		return JoinSYNACK{b[0] & 0xf, b[1], [8]byte(b[2:]), binary.BigEndian.Uint32(b[10:])}, true
	case 22:
		return JoinACK{binary.BigEndian.Uint16(b) & 0xfff, [20]byte(b[2:])}, true
	}
	return nil, false
}

// Option returns the encoded option.
func (j JoinSYN) Option() Option {
	b := []byte{byte(SubtypeJoin)<<4 | j.Flags&0xf, j.AddressID}
	b = binary.BigEndian.AppendUint32(b, j.Token)
	return Option{KindMPTCP, binary.BigEndian.AppendUint32(b, j.Nonce)}
}

// Option returns the encoded option.
func (j JoinSYNACK) Option() Option {
	b := append([]byte{byte(SubtypeJoin)<<4 | j.Flags&0xf, j.AddressID}, j.HMAC[:]...)
	return Option{KindMPTCP, binary.BigEndian.AppendUint32(b, j.Nonce)}
}

// Option returns the encoded option.
func (j JoinACK) Option() Option {
	return Option{KindMPTCP, append(header12(SubtypeJoin, j.Reserved), j.HMAC[:]...)}
}

// header12 is a subtype and 12 bits.
func header12(s Subtype, bits uint16) []byte {
	return binary.BigEndian.AppendUint16(make([]byte, 0, 26), uint16(s)<<12|bits&0xfff)
}

// Flags of DSS (RFC 8684, 3.3).
const (
	DSSAck    = 0x01 // A: there is a data ACK
	DSSAck8   = 0x02 // a: of 8 bytes
	DSSMap    = 0x04 // M: there is a mapping
	DSSMap8   = 0x08 // m: with a data sequence number of 8 bytes
	DSSFinish = 0x10 // F: DATA_FIN
)

// DSS is a data sequence signal (RFC 8684, 3.3). A number of 4 bytes is the lower half of the whole number.
type DSS struct {
	Flags       uint16 // 12 bits
	Ack         uint64
	Sequence    uint64 // of the data
	Subflow     uint32 // sequence number relative to the subflow's first
	Length      uint16 // of the mapping; 0: infinite
	HasChecksum bool
	Checksum    uint16
}

// DSS decodes a data sequence signal like MPTCP, but allocates nothing.
func (o Option) DSS() (d DSS, ok bool) {
	if s, is := o.Subtype(); !is || s != SubtypeDSS || len(o.Data) < 2 {
		return d, false
	}
	d.Flags = binary.BigEndian.Uint16(o.Data) & 0xfff
	b := o.Data[2:]
	if d.Flags&DSSAck != 0 {
		if d.Ack, b, ok = number(b, d.Flags&DSSAck8 != 0); !ok {
			return d, false
		}
	}
	if d.Flags&DSSMap == 0 {
		return d, len(b) == 0
	}
	if d.Sequence, b, ok = number(b, d.Flags&DSSMap8 != 0); !ok || len(b) != 6 && len(b) != 8 {
		return d, false
	}
	d.Subflow, d.Length = binary.BigEndian.Uint32(b), binary.BigEndian.Uint16(b[4:])
	if len(b) == 8 {
		d.HasChecksum, d.Checksum = true, binary.BigEndian.Uint16(b[6:])
	}
	return d, true
}

// number splits off a number of 4 or 8 bytes.
func number(b []byte, long bool) (n uint64, rest []byte, ok bool) {
	switch {
	case long && len(b) >= 8:
		return binary.BigEndian.Uint64(b), b[8:], true
	case !long && len(b) >= 4:
		return uint64(binary.BigEndian.Uint32(b)), b[4:], true
	}
	return 0, nil, false
}

func appendNumber(b []byte, n uint64, long bool) []byte {
	if long {
		return binary.BigEndian.AppendUint64(b, n)
	}
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// Option returns the encoded option.
func (d DSS) Option() Option {
	b := header12(SubtypeDSS, d.Flags)
	if d.Flags&DSSAck != 0 {
		b = appendNumber(b, d.Ack, d.Flags&DSSAck8 != 0)
	}
	if d.Flags&DSSMap != 0 {
		b = appendNumber(b, d.Sequence, d.Flags&DSSMap8 != 0)
		b = binary.BigEndian.AppendUint32(b, d.Subflow)
		b = binary.BigEndian.AppendUint16(b, d.Length)
		if d.HasChecksum {
			b = binary.BigEndian.AppendUint16(b, d.Checksum)
		}
	}
	return Option{KindMPTCP, b}
}

// AddAddrEcho is the flag E of AddAddr in version 1.
const AddAddrEcho = 0x1

// AddAddr is ADD_ADDR (RFC 8684, 3.4.1; RFC 6824, 3.4.1). In version 0 the flags are the IP version, and there are no
// echoes or HMACs. In version 1, all except echoes have an HMAC.
type AddAddr struct {
	Version   uint8
	Flags     uint8 // 4 bits
	AddressID uint8
	Address   netip.Addr
	HasPort   bool
	Port      uint16
	HMAC      [8]byte
}

func parseAddAddr(b []byte) (a AddAddr, ok bool) {
	if len(b) < 6 {
		return a, false
	}
	a = AddAddr{Version: 1, Flags: b[0] & 0xf, AddressID: b[1]}
	short, long := len(b) == 6 || len(b) == 8, len(b) == 18 || len(b) == 20
	if a.Flags == 4 && short || a.Flags == 6 && long {
		a.Version = 0
	}
	b = b[2:]
	if a.authenticated() {
		if len(b) < 12 {
			return a, false
		}
		a.HMAC, b = [8]byte(b[len(b)-8:]), b[:len(b)-8]
	}
	switch len(b) {
	case 4, 6:
		a.Address, b = netip.AddrFrom4([4]byte(b)), b[4:]
	case 16, 18:
		a.Address, b = netip.AddrFrom16([16]byte(b)), b[16:]
	default:
		return a, false
	}
	if len(b) == 2 {
		a.HasPort, a.Port = true, binary.BigEndian.Uint16(b)
	}
	return a, true
}

func (a AddAddr) authenticated() bool { return a.Version > 0 && a.Flags&AddAddrEcho == 0 }

// Option returns the encoded option.
func (a AddAddr) Option() Option {
	b := []byte{byte(SubtypeAddAddr)<<4 | a.Flags&0xf, a.AddressID}
	b = append(b, a.Address.AsSlice()...)
	if a.HasPort {
		b = binary.BigEndian.AppendUint16(b, a.Port)
	}
	if a.authenticated() {
		b = append(b, a.HMAC[:]...)
	}
	return Option{KindMPTCP, b}
}

// RemoveAddr is REMOVE_ADDR (RFC 8684, 3.4.2).
type RemoveAddr struct {
	Reserved   uint8 // 4 bits
	AddressIDs []byte
}

func parseRemoveAddr(b []byte) (RemoveAddr, bool) {
	return RemoveAddr{b[0] & 0xf, b[1:]}, len(b) > 1
}

// Option returns the encoded option.
func (r RemoveAddr) Option() Option {
	return Option{KindMPTCP, append([]byte{byte(SubtypeRemoveAddr)<<4 | r.Reserved&0xf}, r.AddressIDs...)}
}

// Priority is MP_PRIO (RFC 8684, 3.3.8). Version 0 may name the address (RFC 6824, 3.3.8).
type Priority struct {
	Flags        uint8 // 4 bits
	HasAddressID bool
	AddressID    uint8
}

func parsePriority(b []byte) (p Priority, ok bool) {
	p.Flags = b[0] & 0xf
	if len(b) == 2 {
		p.HasAddressID, p.AddressID = true, b[1]
	}
	return p, len(b) <= 2
}

// Option returns the encoded option.
func (p Priority) Option() Option {
	b := []byte{byte(SubtypePriority)<<4 | p.Flags&0xf}
	if p.HasAddressID {
		b = append(b, p.AddressID)
	}
	return Option{KindMPTCP, b}
}

// Fail is MP_FAIL (RFC 8684, 3.7).
type Fail struct {
	Reserved uint16 // 12 bits
	Sequence uint64 // of the data
}

func parseFail(b []byte) (f Fail, ok bool) {
	if len(b) != 10 {
		return f, false
	}
	return Fail{binary.BigEndian.Uint16(b) & 0xfff, binary.BigEndian.Uint64(b[2:])}, true
}

// Option returns the encoded option.
func (f Fail) Option() Option {
	return Option{KindMPTCP, binary.BigEndian.AppendUint64(header12(SubtypeFail, f.Reserved), f.Sequence)}
}

// FastClose is MP_FASTCLOSE (RFC 8684, 3.5).
type FastClose struct {
	Reserved uint16 // 12 bits
	Receiver Key
}

func parseFastClose(b []byte) (f FastClose, ok bool) {
	if len(b) != 10 {
		return f, false
	}
	return FastClose{binary.BigEndian.Uint16(b) & 0xfff, Key(binary.BigEndian.Uint64(b[2:]))}, true
}

// Option returns the encoded option.
func (f FastClose) Option() Option {
	return Option{KindMPTCP, binary.BigEndian.AppendUint64(header12(SubtypeFastClose, f.Reserved), uint64(f.Receiver))}
}

// ResetTransient is the flag T of Reset: another try may succeed.
const ResetTransient = 0x1

// Reset is MP_TCPRST (RFC 8684, 3.6).
type Reset struct {
	Flags  uint8 // 4 bits
	Reason uint8
}

func parseReset(b []byte) (r Reset, ok bool) {
	if len(b) != 2 {
		return r, false
	}
	return Reset{b[0] & 0xf, b[1]}, true
}

// Option returns the encoded option.
func (r Reset) Option() Option {
	return Option{KindMPTCP, []byte{byte(SubtypeReset)<<4 | r.Flags&0xf, r.Reason}}
}

// MPUnknown is an MPTCP option with an unknown subtype.
type MPUnknown struct{ Data []byte }

// Option returns the encoded option.
func (u MPUnknown) Option() Option { return Option{KindMPTCP, u.Data} }
