package ask

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"time"
)

// A packet on the socket has a version, a kind and the fields of that kind. An address with its port has 18 bytes: an
// IPv6 or IPv4-mapped address, then the port. The unspecified address with port 0 stands for none.

const version = 1

// Kinds of packets.
const (
	kindQuestion = iota + 1
	kindExpect
	kindLearned
	kindSuspect
	kindAnswer
	kindExpected
	kindProgram
	kindExcluded
	kindUnserved
	kindCarried
	kindFastOpened
	kindRefused // relays of older versions hang up, and the client connects again
)

const (
	addrPortLen = 16 + 2
	directLen   = 4 + 1 // of a direct answer: KeepFor and Plain
	// maxPacket is one byte more than the longest packet has, so that a packet which is too long is noticed.
	maxPacket = 2 + MaxProgram + 1
)

// anyReason takes the place of the reason that a packet of kindSuspect had in older versions, whose relays expect one.
const anyReason = 1

var errMalformed = errors.New("malformed packet on the relay's socket")

// request is a packet of a client.
type request struct {
	kind   byte
	server netip.AddrPort // in kindSuspect and kindFastOpened: the converter
	local  netip.AddrPort // of kindExpect, and of kindCarried unless the client is of an older version
	mptcp  bool           // of kindLearned
	how    FastOpen       // of kindFastOpened
	// converter is in kindUnserved, kindRefused and kindCarried. The times are in kindCarried, in whole microseconds.
	converter         netip.AddrPort
	handshake, answer time.Duration
	// program is the only field of kindProgram.
	program string
}

// answered reports whether the server sends a packet in return.
func (r request) answered() bool {
	return r.kind == kindQuestion || r.kind == kindExpect || r.kind == kindProgram
}

func (r request) encode() []byte {
	if r.kind == kindProgram {
		return append([]byte{version, r.kind}, r.program...)
	}
	b := appendAddrPort([]byte{version, r.kind}, r.server)
	switch r.kind {
	case kindExpect:
		b = appendAddrPort(b, r.local)
	case kindLearned:
		b = appendBool(b, r.mptcp)
	case kindSuspect:
		b = append(b, anyReason)
	case kindFastOpened:
		b = append(b, byte(r.how))
	case kindUnserved, kindRefused:
		b = appendAddrPort(b, r.converter)
	case kindCarried:
		b = appendDuration(appendDuration(appendAddrPort(b, r.converter), r.handshake), r.answer)
		if r.local.IsValid() { // relays of older versions hang up then
			b = appendAddrPort(b, r.local)
		}
	}
	return b
}

func decodeRequest(b []byte) (request, error) {
	d := newDecoder(b)
	if d.kind == kindProgram {
		if len(d.rest) == 0 || len(d.rest) > MaxProgram {
			return request{}, errMalformed
		}
		return request{kind: d.kind, program: string(d.rest)}, nil
	}
	r := request{kind: d.kind, server: d.addrPort()}
	switch r.kind {
	case kindQuestion:
	case kindExpect:
		r.local = d.addrPort()
	case kindLearned:
		r.mptcp = d.bool()
	case kindSuspect:
		d.check(d.byte() != 0)
	case kindFastOpened:
		r.how = FastOpen(d.byte())
		d.check(r.how >= FastOpenWorked && r.how <= FastOpenFailed)
	case kindUnserved, kindRefused:
		r.converter = d.addrPort()
		d.check(r.converter.IsValid())
	case kindCarried:
		r.converter, r.handshake, r.answer = d.addrPort(), d.duration(), d.duration()
		d.check(r.converter.IsValid())
		if len(d.rest) > 0 {
			r.local = d.addrPort()
			d.check(r.local.IsValid())
		}
	default:
		return request{}, errMalformed
	}
	d.check(r.server.IsValid() && (r.kind != kindExpect || r.local.IsValid()))
	if !d.end() {
		return request{}, errMalformed
	}
	return r, nil
}

func encodeAnswer(a Answer) []byte {
	b := []byte{version, kindAnswer}
	if a.Convert == nil {
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(a.KeepFor, 0), maxKeep).Milliseconds()))
		return appendBool(b, a.Plain)
	}
	c := a.Convert
	for _, addr := range []netip.AddrPort{c.Converter, c.Relay4, c.Relay6} {
		b = appendAddrPort(b, addr)
	}
	b = binary.BigEndian.AppendUint64(b, c.Namespace)
	b = append(b, byte(min(len(c.Cookie), MaxCookie)))
	b = append(b, c.Cookie[:min(len(c.Cookie), MaxCookie)]...)
	if c.FastOpen { // only if set, because older clients do not know this field
		b = appendBool(b, true)
	}
	return b
}

// maxKeep bounds the time for which a client keeps a direct answer.
const maxKeep = time.Hour

func decodeAnswer(b []byte) (Answer, error) {
	d := newDecoder(b)
	d.check(d.kind == kindAnswer)
	if len(d.rest) == directLen {
		keep := time.Duration(binary.BigEndian.Uint32(d.take(4))) * time.Millisecond
		d.check(keep <= maxKeep)
		plain := d.bool()
		if !d.end() {
			return Answer{}, errMalformed
		}
		return Answer{KeepFor: keep, Plain: plain}, nil
	}
	c := &Convert{Converter: d.addrPort(), Relay4: d.addrPort(), Relay6: d.addrPort()}
	c.Namespace = binary.BigEndian.Uint64(d.take(8))
	n := int(d.byte())
	d.check(n <= MaxCookie)
	if n <= MaxCookie {
		c.Cookie = append([]byte{}, d.take(n)...)
	}
	if len(d.rest) > 0 {
		c.FastOpen = d.bool()
		d.check(c.FastOpen)
	}
	if !d.end() {
		return Answer{}, errMalformed
	}
	return Answer{Convert: c}, nil
}

// encodeYesOrNo encodes a reply of kindExpected or kindExcluded.
func encodeYesOrNo(kind byte, yes bool) []byte { return appendBool([]byte{version, kind}, yes) }

func decodeYesOrNo(kind byte, b []byte) (bool, error) {
	d := newDecoder(b)
	d.check(d.kind == kind)
	ok := d.bool()
	if !d.end() {
		return false, errMalformed
	}
	return ok, nil
}

func appendAddrPort(b []byte, a netip.AddrPort) []byte {
	addr := netip.IPv6Unspecified()
	if a.IsValid() {
		addr = a.Addr()
	}
	bytes := addr.As16()
	return binary.BigEndian.AppendUint16(append(b, bytes[:]...), a.Port())
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// appendDuration appends a time in microseconds. Longer times than 71 minutes are cut to that.
func appendDuration(b []byte, t time.Duration) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(min(max(t.Microseconds(), 0), math.MaxUint32)))
}

// decoder decodes a packet. After an error its methods return zeros.
type decoder struct {
	kind byte
	rest []byte
	bad  bool
}

func newDecoder(b []byte) *decoder {
	if len(b) < 2 || b[0] != version {
		return &decoder{bad: true}
	}
	return &decoder{kind: b[1], rest: b[2:]}
}

// check notes that the packet is malformed unless ok.
func (d *decoder) check(ok bool) { d.bad = d.bad || !ok }

// end reports whether the packet was well-formed and has no more bytes.
func (d *decoder) end() bool { return !d.bad && len(d.rest) == 0 }

func (d *decoder) take(n int) []byte {
	if len(d.rest) < n {
		d.bad, d.rest = true, nil
		return make([]byte, n)
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) byte() byte { return d.take(1)[0] }

func (d *decoder) bool() bool {
	v := d.byte()
	d.check(v <= 1)
	return v == 1
}

func (d *decoder) duration() time.Duration {
	return time.Duration(binary.BigEndian.Uint32(d.take(4))) * time.Microsecond
}

// addrPort returns the next address with its port, or the zero AddrPort for none.
func (d *decoder) addrPort() netip.AddrPort {
	b := d.take(addrPortLen)
	addr, port := netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:])
	if addr == netip.IPv6Unspecified() && port == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, port)
}
