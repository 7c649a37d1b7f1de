package analysetest

import (
	"encoding/binary"
	"io"
	"time"
)

// Pcap writes frames as a pcap file of Ethernet packets.
type Pcap struct {
	to     io.Writer
	snap   int
	begin  time.Time
	buffer []byte
	Count  uint64
}

const (
	ethernetHeader = 14
	nanoseconds    = 0xa1b23c4d
)

// Begin is the time of the first packet of captures in tests.
var Begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// NewPcap writes the file's header. Packets are cut to snap bytes.
func NewPcap(to io.Writer, snap int) (*Pcap, error) {
	b := binary.LittleEndian.AppendUint32(nil, nanoseconds)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(snap))
	b = binary.LittleEndian.AppendUint32(b, 1) // Ethernet
	_, err := to.Write(b)
	return &Pcap{to: to, snap: snap, begin: Begin}, err
}

// Write writes a packet.
func (p *Pcap) Write(f Frame) error {
	p.Count++
	length := ethernetHeader + len(f.IP)
	kept := min(length, p.snap)
	at := p.begin.Add(f.At).UnixNano()
	b := binary.LittleEndian.AppendUint32(p.buffer[:0], uint32(at/1e9))
	b = binary.LittleEndian.AppendUint32(b, uint32(at%1e9))
	b = binary.LittleEndian.AppendUint32(b, uint32(kept))
	b = binary.LittleEndian.AppendUint32(b, uint32(length))
	b = append(b, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2)
	if f.IP[0]>>4 == 4 {
		b = append(b, 0x08, 0x00)
	} else {
		b = append(b, 0x86, 0xdd)
	}
	b = append(b, f.IP[:max(0, kept-ethernetHeader)]...)
	p.buffer = b
	_, err := p.to.Write(b)
	return err
}
