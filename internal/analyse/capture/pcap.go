package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Magic numbers of pcap files (draft-ietf-opsawg-pcap).
const (
	magicMicroseconds = 0xa1b2c3d4
	magicNanoseconds  = 0xa1b23c4d
)

const (
	pcapHeader = 24
	pcapRecord = 16
)

type pcapReader struct {
	in    *blocks
	order binary.ByteOrder
	big   bool
	unit  int64 // nanoseconds
	link  LinkType
}

// newPcap reads a file's header. It returns nil if the magic number is not one of pcap.
func newPcap(in *blocks) (*pcapReader, error) {
	head, err := in.peek(4)
	if err != nil {
		return nil, nil //nolint:nilerr // it is no pcap file
	}
	r := &pcapReader{in: in}
	switch little, big := binary.LittleEndian.Uint32(head), binary.BigEndian.Uint32(head); {
	case little == magicMicroseconds:
		r.order, r.unit = binary.LittleEndian, 1000
	case little == magicNanoseconds:
		r.order, r.unit = binary.LittleEndian, 1
	case big == magicMicroseconds:
		r.order, r.unit, r.big = binary.BigEndian, 1000, true
	case big == magicNanoseconds:
		r.order, r.unit, r.big = binary.BigEndian, 1, true
	default:
		return nil, nil
	}
	if head, err = in.take(pcapHeader); errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, cutHead()
	} else if err != nil {
		return nil, fmt.Errorf("read the file header: %w", err)
	}
	r.link = LinkType(r.order.Uint32(head[20:])) // the upper half has the length of the frame check sequence
	return r, nil
}

func (r *pcapReader) next(p *Packet) error {
	head, err := r.in.take(pcapRecord)
	if err != nil {
		return err
	}
	var seconds, fraction, size, length uint32
	if r.big {
		seconds, fraction = binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:])
		size, length = binary.BigEndian.Uint32(head[8:]), binary.BigEndian.Uint32(head[12:])
	} else {
		seconds, fraction = binary.LittleEndian.Uint32(head), binary.LittleEndian.Uint32(head[4:])
		size, length = binary.LittleEndian.Uint32(head[8:]), binary.LittleEndian.Uint32(head[12:])
	}
	if size > maxRecord {
		return fmt.Errorf("a packet of %d bytes before byte %d: the file is damaged from there on", size, r.in.offset())
	}
	if p.Data, err = r.in.take(int(size)); err != nil {
		return cut(err)
	}
	p.Time = int64(seconds)*1e9 + int64(fraction)*r.unit
	p.Length, p.Link = max(int(length), int(size)), r.link
	return nil
}
