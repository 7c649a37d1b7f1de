package recipe

import "github.com/detour-collective/dcol/internal/packet"

// download collects the data that a server sends on the first subflow of an MPTCP connection, and the mappings of that
// data to data sequence numbers (RFC 8684, 3.3.1).
type download struct {
	first    uint32 // TCP sequence number of the SYN+ACK; data begins behind it
	initial  uint64 // the server's initial data sequence number; data begins behind it, too
	mappings []packet.DSS
	payload  []byte // of the segment with the first byte of data
}

// take adds a segment of the server.
func (d *download) take(p *packet.Packet) {
	if s, ok := dssOf(p.TCP); ok && s.Flags&packet.DSSMap != 0 {
		d.mappings = append(d.mappings, s)
	}
	if len(p.Payload) > 0 && p.TCP.Seq == d.first+1 && d.payload == nil {
		d.payload = p.Payload
	}
}

// arrived reports whether the server has sent data.
func (d *download) arrived() bool { return d.payload != nil }

// mapping describes how the first segment of data is mapped.
type mapping int

const (
	unmapped   mapping = iota // no mapping came
	infinite                  // the server has fallen back to TCP (RFC 8684, 3.7)
	misfitting                // mappings came, but not the one that this data should have
	corrupted                 // the mapping's checksum is not that of the data
	fitting                   // all bytes have the data sequence numbers that they should have
)

// mapping returns how the first segment of data is mapped.
func (d *download) mapping() mapping {
	result := unmapped
	for at := range uint32(len(d.payload)) {
		m, found := d.covering(1 + at)
		switch {
		case found && m.Length == 0:
			return infinite
		case !found && len(d.mappings) > 0:
			return misfitting
		case !found:
			return unmapped
		case m.HasChecksum && m.Subflow == 1 && int(m.Length) == len(d.payload) &&
			m.Checksum != packet.DSSChecksum(d.initial+1, m.Subflow, m.Length, d.payload):
			return corrupted
		}
		result = fitting
	}
	return result
}

// covering returns the mapping of a byte with the right data sequence number. at counts bytes from the SYN+ACK. An
// infinite mapping covers all bytes from its beginning on.
func (d *download) covering(at uint32) (packet.DSS, bool) {
	for _, m := range d.mappings {
		finish := m.Flags&packet.DSSFinish != 0
		length := uint32(m.Length)
		if finish {
			length-- // a DATA_FIN counts, and is no byte
		}
		is, should := m.Sequence-uint64(m.Subflow), d.initial
		if m.Flags&packet.DSSMap8 == 0 {
			is, should = uint64(uint32(is)), uint64(uint32(should))
		}
		if m.Length == 0 && at >= m.Subflow || is == should && at-m.Subflow < length {
			return m, true
		}
	}
	return packet.DSS{}, false
}
