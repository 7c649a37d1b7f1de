package compare

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
)

// Change is a field that is not as it was sent.
type Change struct {
	Field      Field
	Sent, Seen Value
}

// Kind classifies the change of a field.
type Kind string

// The kinds.
const (
	Changed Kind = "changed"
	Removed Kind = "removed"
	Added   Kind = "added"
)

// Kind returns the kind of the change.
func (c Change) Kind() Kind {
	switch {
	case !c.Sent.Present:
		return Added
	case !c.Seen.Present:
		return Removed
	}
	return Changed
}

// Comparison is the result of comparing a quote with the packet that was sent.
type Comparison struct {
	Changes []Change // in the order of the packet
	// Bytes is the number of bytes quoted behind the packet's IP header.
	Bytes int
	// Full is set if the quote shows the whole packet.
	Full bool
	// Odd describes errors in the quote's IP header that routers are known to make. They change no packet.
	Odd []string
	// Mismatch is set if the quote is full and its transport checksum does not fit it. So the packet was
	// something else when the checksum was computed: a NAT that reverts quotes leaves this trace.
	Mismatch bool
	// Padded is set if options are gone and others moved nowhere: they were overwritten.
	Padded bool
	// quoted is the quote without errors in its IP header. A view of it takes twenty times as much memory.
	quoted []byte
}

// view returns the fields that the quote shows.
func (c *Comparison) view() *View {
	q, _ := packet.ParseQuote(c.quoted) // it was parsed before
	return Of(q)
}

// ErrOther is the error for a quote that is of another kind of packet.
var ErrOther = errors.New("the quote is of another packet")

// Sent is a packet as it was sent, to be compared. It keeps only bytes, because most packets of a campaign are never
// quoted.
type Sent struct{ bytes []byte }

// NewSent prepares a packet as it was sent.
func NewSent(b []byte) (*Sent, error) {
	if _, err := packet.Parse(b); err != nil {
		return nil, fmt.Errorf("the packet to compare with: %w", err)
	}
	return &Sent{bytes: b}, nil
}

// Packet returns the packet.
func (s *Sent) Packet() (*packet.Packet, error) { return packet.Parse(s.bytes) }

// View returns the fields that were sent.
func (s *Sent) View() *View {
	p, _ := packet.Parse(s.bytes) // NewSent has parsed it
	return Of(p)
}

// isIPv4 reports whether the packet is one of IPv4.
func (s *Sent) isIPv4() bool { return s.bytes[0]>>4 == 4 }

// Quote compares the bytes that an ICMP error quotes. It ignores the fields that each router changes: the time to
// live and the IP header's checksum.
func (s *Sent) Quote(quoted []byte) (*Comparison, error) {
	c := &Comparison{}
	quoted = s.straighten(slices.Clone(quoted), c)
	q, err := packet.ParseQuote(quoted)
	if q == nil {
		return nil, err
	}
	if (q.V4 != nil) != s.isIPv4() {
		return nil, fmt.Errorf("%w: of another IP version", ErrOther)
	}
	sent, seen := s.View(), Of(q)
	c.quoted = quoted
	c.Bytes = max(0, min(len(quoted)-len(q.Trailer), total(q))-header(q))
	c.Full = q.Missing == 0 && q.Cut == 0
	c.Changes = changes(sent, seen)
	c.Mismatch = c.Full && errors.Is(q.Verify(), packet.ErrChecksum) && checksumChanged(c.Changes)
	c.Padded = seen.allOptions && seen.padding > sent.padding
	return c, nil
}

// checksumChanged reports whether a transport checksum is among the changes.
func checksumChanged(changes []Change) bool {
	return slices.ContainsFunc(changes, func(c Change) bool { return c.Field.checksum() })
}

// changes returns the fields that differ and are visible in both.
func changes(sent, seen *View) (changes []Change) {
	fields := slices.Clone(sent.order)
	for _, f := range seen.order {
		if !slices.Contains(fields, f) {
			fields = append(fields, f)
		}
	}
	for _, f := range fields {
		was, known := sent.Value(f)
		is, visible := seen.Value(f)
		if known && visible && !was.equal(is) {
			changes = append(changes, Change{Field: f, Sent: was, Seen: is})
		}
	}
	if _, visible := seen.Value(Payload); !visible && seen.prefix != "" && len(seen.prefix) <= len(sent.prefix) &&
		seen.prefix != sent.prefix[:len(seen.prefix)] {
		was, _ := sent.Value(Payload)
		changes = append(changes, Change{Field: Payload, Sent: was, Seen: text(seen.prefix, showBytes([]byte(seen.prefix)))})
	}
	return changes
}

// Places in IPv4's header.
const (
	lengthAt4   = 2
	idAt        = 4
	fragmentAt  = 6
	header4     = 20
	lengthAt6   = 4
	header6     = 40
	swappedFrom = "its byte order is reversed"
)

// straighten corrects known errors of routers in a quoted IP header, and notes them.
func (s *Sent) straighten(q []byte, c *Comparison) []byte {
	if !s.isIPv4() || len(q) < header4 || q[0]>>4 != 4 {
		return q
	}
	field := func(b []byte, at int) uint16 { return binary.BigEndian.Uint16(b[at:]) }
	put := func(at int) { copy(q[at:at+2], s.bytes[at:at+2]) }
	for _, f := range []struct {
		at   int
		name string
	}{{idAt, "identification"}, {fragmentAt, "fragment field"}} {
		if was := field(s.bytes, f.at); field(q, f.at) != was && field(q, f.at) == bits.ReverseBytes16(was) {
			put(f.at)
			c.Odd = append(c.Odd, "the "+f.name+": "+swappedFrom)
		}
	}
	was, is := field(s.bytes, lengthAt4), field(q, lengthAt4)
	if was == is {
		return q
	}
	ihl := uint16(q[0]&0xf) * 4
	switch {
	case is == was-ihl, is == bits.ReverseBytes16(was), is == bits.ReverseBytes16(was-ihl), is == 0:
	case s.sameBytes(q):
		// Everything is there as it was sent, so nothing was removed or added.
	default:
		return q
	}
	put(lengthAt4)
	c.Odd = append(c.Odd, fmt.Sprintf("the length: %d instead of %d", is, was))
	return q
}

// sameBytes reports whether the whole packet is quoted as it was sent, except for the fields that routers change.
func (s *Sent) sameBytes(q []byte) bool {
	n := len(s.bytes)
	if len(q) < n {
		return false
	}
	a, b := slices.Clone(s.bytes), slices.Clone(q[:n])
	for _, h := range [][]byte{a, b} {
		h[lengthAt4], h[lengthAt4+1] = 0, 0
		h[8], h[10], h[11] = 0, 0, 0 // time to live, checksum
	}
	return slices.Equal(a, b)
}

// total and header return a packet's length by its IP header, and the header's length.
func total(p *packet.Packet) int {
	if p.V4 != nil {
		return int(p.V4.Length)
	}
	return header6 + int(p.V6.Length)
}

func header(p *packet.Packet) int {
	if p.V4 != nil {
		return int(p.V4.IHL) * 4
	}
	n := header6
	for _, e := range p.V6.Extensions {
		n += len(e.Data)
	}
	return n
}
