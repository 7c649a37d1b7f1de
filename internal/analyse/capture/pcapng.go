package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
)

// Types of blocks (draft-ietf-opsawg-pcapng, 4).
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6

	byteOrderMagic = 0x1a2b3c4d
)

// Options of an interface (draft-ietf-opsawg-pcapng, 4.2).
const (
	optionEnd        = 0
	optionResolution = 9
	optionOffset     = 14
)

// maxInterfaces bounds the interfaces of a section. A capture of all interfaces has tens.
const maxInterfaces = 65536

type pcapngReader struct {
	in         *blocks
	order      binary.ByteOrder
	interfaces []ngInterface
	last       int64 // the latest time, for packets that have none
}

type ngInterface struct {
	link   LinkType
	snap   uint32
	ticks  uint64 // per second
	offset int64  // seconds
}

// newPcapng returns nil if the stream does not begin as pcapng does.
func newPcapng(in *blocks) *pcapngReader {
	head, err := in.peek(4)
	if err != nil || binary.BigEndian.Uint32(head) != blockSection {
		return nil
	}
	return &pcapngReader{in: in}
}

func (r *pcapngReader) next(p *Packet) error {
	for {
		if found, err := r.block(p); err != nil || found {
			return err
		}
	}
}

// block reads one block, and reports whether it has a packet.
func (r *pcapngReader) block(p *Packet) (found bool, err error) {
	head, err := r.in.peek(12)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return false, cut(err)
	}
	if err != nil {
		return false, err
	}
	if binary.BigEndian.Uint32(head) == blockSection {
		return false, r.section(head)
	}
	kind, size := r.order.Uint32(head), r.order.Uint32(head[4:])
	if size < 12 || size%4 != 0 || size > maxRecord {
		return false, fmt.Errorf("a block of %d bytes at byte %d: the file is damaged from there on", size, r.in.offset())
	}
	b, err := r.in.take(int(size))
	if err != nil {
		return false, cut(err)
	}
	body := b[8 : size-4]
	switch kind {
	case blockInterface:
		return false, r.addInterface(body)
	case blockEnhanced:
		return true, r.enhanced(p, body)
	case blockPacket:
		return true, r.obsolete(p, body)
	case blockSimple:
		return true, r.simple(p, body)
	}
	return false, nil
}

func (r *pcapngReader) section(head []byte) error {
	switch uint32(byteOrderMagic) {
	case binary.LittleEndian.Uint32(head[8:]):
		r.order = binary.LittleEndian
	case binary.BigEndian.Uint32(head[8:]):
		r.order = binary.BigEndian
	default:
		return fmt.Errorf("a section without byte order at byte %d: the file is damaged from there on", r.in.offset())
	}
	size := r.order.Uint32(head[4:])
	if size < 28 || size%4 != 0 || size > maxRecord {
		return fmt.Errorf("a section header of %d bytes at byte %d: the file is damaged from there on", size, r.in.offset())
	}
	r.interfaces = r.interfaces[:0]
	_, err := r.in.take(int(size))
	return cut(err)
}

func (r *pcapngReader) addInterface(body []byte) error {
	if len(body) < 8 || len(r.interfaces) >= maxInterfaces {
		return fmt.Errorf("an interface block of %d bytes, after %d others: the file is damaged", len(body), len(r.interfaces))
	}
	i := ngInterface{link: LinkType(r.order.Uint16(body)), snap: r.order.Uint32(body[4:]), ticks: 1e6}
	for options := body[8:]; len(options) >= 4; {
		code, size := r.order.Uint16(options), int(r.order.Uint16(options[2:]))
		if code == optionEnd || 4+size > len(options) {
			break
		}
		value := options[4 : 4+size]
		switch {
		case code == optionResolution && size == 1:
			var ok bool
			if i.ticks, ok = ticks(value[0]); !ok {
				return fmt.Errorf("a time resolution of %#x, which no clock has: the file is damaged", value[0])
			}
		case code == optionOffset && size == 8:
			i.offset = int64(r.order.Uint64(value))
		}
		options = options[min(len(options), 4+(size+3)&^3):]
	}
	r.interfaces = append(r.interfaces, i)
	return nil
}

// ticks returns the number of time units in a second.
func ticks(resolution byte) (n uint64, ok bool) {
	exponent := resolution & 0x7f
	if resolution&0x80 != 0 {
		return 1 << min(exponent, 63), exponent < 63
	}
	return uint64(math.Pow10(int(min(exponent, 19)))), exponent < 19
}

func (i ngInterface) time(t uint64) int64 {
	if i.ticks == 1e9 {
		return int64(t) + i.offset*1e9
	}
	if i.ticks == 1e6 && t < math.MaxInt64/1000 {
		return int64(t)*1000 + i.offset*1e9
	}
	high, low := bits.Mul64(t%i.ticks, 1e9)
	fraction, _ := bits.Div64(high, low, i.ticks)
	return int64(t/i.ticks)*1e9 + int64(fraction) + i.offset*1e9
}

func (r *pcapngReader) enhanced(p *Packet, body []byte) error {
	if len(body) < 20 {
		return r.short(body)
	}
	t := uint64(r.order.Uint32(body[4:]))<<32 | uint64(r.order.Uint32(body[8:]))
	return r.packet(p, r.order.Uint32(body), t, r.order.Uint32(body[12:]), r.order.Uint32(body[16:]), body[20:])
}

func (r *pcapngReader) obsolete(p *Packet, body []byte) error {
	if len(body) < 20 {
		return r.short(body)
	}
	t := uint64(r.order.Uint32(body[4:]))<<32 | uint64(r.order.Uint32(body[8:]))
	return r.packet(p, uint32(r.order.Uint16(body)), t, r.order.Uint32(body[12:]), r.order.Uint32(body[16:]), body[20:])
}

func (r *pcapngReader) packet(p *Packet, of uint32, t uint64, size, length uint32, data []byte) error {
	if of >= uint32(len(r.interfaces)) {
		return fmt.Errorf("a packet of interface %d at byte %d, which the file does not describe: it is damaged", of, r.in.offset())
	}
	if int64(size) > int64(len(data)) {
		return fmt.Errorf("a packet of %d bytes in a block of %d: the file is damaged before byte %d", size, len(data), r.in.offset())
	}
	i := &r.interfaces[of]
	p.Time, p.Data, p.Link = i.time(t), data[:size:size], i.link
	p.Length = max(int(length), int(size))
	r.last = p.Time
	return nil
}

// simple reads a packet without time, which gets that of the packet before.
func (r *pcapngReader) simple(p *Packet, body []byte) error {
	if len(body) < 4 {
		return r.short(body)
	}
	if len(r.interfaces) == 0 {
		return errors.New("a packet before any interface: the file is damaged")
	}
	i := &r.interfaces[0]
	length := r.order.Uint32(body)
	size := min(length, uint32(len(body)-4))
	if i.snap > 0 {
		size = min(size, i.snap)
	}
	p.Time, p.Data, p.Length, p.Link = r.last, body[4:4+size:4+size], int(length), i.link
	return nil
}

func (r *pcapngReader) short(body []byte) error {
	return fmt.Errorf("a packet block of %d bytes: the file is damaged before byte %d", len(body), r.in.offset())
}

// cut replaces the end of the stream within a record by an error with that cause.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("it ends within a packet: %w", io.ErrUnexpectedEOF)
	}
	return err
}
