package rules

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

func (t *Table) mappingElements(mappings []Mapping) []setElements {
	four, six := t.schema.four, t.schema.six
	out := []setElements{{set: four.servers}, {set: four.marks}, {set: six.servers}, {set: six.marks}}
	for _, m := range mappings {
		servers, marks := &out[0], &out[1]
		if m.Client.Is6() {
			servers, marks = &out[2], &out[3]
		}
		e := nft.Element{Key: encodeKey(m.Client, m.Port), Timeout: life(m.Left)}
		e.Data = encodeKey(m.Server.Addr(), m.Server.Port())
		servers.elements = append(servers.elements, e)
		e.Data, e.Jump = nil, markChain{m.Member, wire.Mapped}.name()
		marks.elements = append(marks.elements, e)
	}
	return out
}

// life returns an element's timeout. An element without one would never expire.
func life(left time.Duration) time.Duration { return max(left, time.Millisecond) }

func (t *Table) admissionElements(admissions []Admission) []setElements {
	open, keyed := setElements{set: t.schema.inBand.open}, setElements{set: t.schema.inBand.keyed}
	four, six := setElements{set: t.schema.four.tunnels}, setElements{set: t.schema.six.tunnels}
	converted := setElements{set: t.schema.converted}
	for _, a := range admissions {
		e := nft.Element{Key: a.Addr.AsSlice(), Jump: markChain{a.Member, a.Kind}.name(), Timeout: life(a.Left)}
		to := &four
		switch {
		case a.Kind == wire.InBand && t.schema.options.InBand == InBandAuthenticated:
			to, e.Key = &keyed, append(e.Key, encodeMark(t.schema.options.Marks.Mark(a.Member, a.Kind))...)
		case a.Kind == wire.InBand:
			to = &open
		case a.Kind == wire.Converter:
			to, e.Key = &converted, encodeMark(t.schema.options.Marks.Mark(a.Member, a.Kind))
		case a.Addr.Is6():
			to = &six
		}
		to.elements = append(to.elements, e)
	}
	return []setElements{open, keyed, four, six, converted}
}

// forbiddenElements returns the elements of every set of forbidden servers. It includes sets without ranges, so that
// they can be emptied.
func (t *Table) forbiddenElements(ranges []egress.Range) []setElements {
	four, six := setElements{set: t.schema.four.forbidden}, setElements{set: t.schema.six.forbidden}
	for _, r := range ranges {
		to := &four
		if r.First.Is6() {
			to = &six
		}
		to.elements = append(to.elements, nft.Element{Key: r.First.AsSlice(), Last: r.Last.AsSlice()})
	}
	out := []setElements{four, six}
	if t.schema.options.InBand != InBandOff {
		out = append(out, setElements{t.schema.inBand.forbidden, four.elements})
	}
	return out
}

// encodeKey returns the concatenation of an address and a port, in the form of nftables: each part takes a multiple of 4
// bytes.
func encodeKey(addr netip.Addr, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(addr.AsSlice(), port), 0, 0)
}

func decodeKey(b []byte, f family) (Key, bool) {
	if len(b) != int(f.addr.Size())+4 {
		return Key{}, false
	}
	addr, ok := netip.AddrFromSlice(b[:f.addr.Size()])
	return Key{addr, binary.BigEndian.Uint16(b[f.addr.Size():])}, ok
}

func encodeMark(mark uint32) []byte { return binary.NativeEndian.AppendUint32(nil, mark) }

func memberElements(members []Member) []nft.Element {
	elements := make([]nft.Element, len(members))
	for i, m := range members {
		elements[i] = nft.Element{Key: encodeMark(uint32(m.ID)), Comment: m.Name + " " + m.Serial}
	}
	return elements
}

func decodeMember(e nft.Element) (Member, bool) {
	if len(e.Key) != 4 {
		return Member{}, false
	}
	number := binary.NativeEndian.Uint32(e.Key)
	id := MemberID(number)
	name, serial, found := strings.Cut(e.Comment, " ")
	return Member{ID: id, Name: name, Serial: serial}, found && id != 0 && number == uint32(id)
}

func portElements(ports []uint16) []nft.Element {
	elements := make([]nft.Element, len(ports))
	for i, port := range ports {
		elements[i] = nft.Element{Key: binary.BigEndian.AppendUint16(nil, port)}
	}
	return elements
}

func decodePort(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func interfaceElements(names []string) []nft.Element {
	elements := make([]nft.Element, len(names))
	for i, name := range names {
		key := make([]byte, unix.IFNAMSIZ)
		copy(key, name)
		elements[i] = nft.Element{Key: key}
	}
	return elements
}

func (t *Table) closedElements(closed bool) []nft.Element {
	if !closed {
		return nil
	}
	return []nft.Element{{Key: encodeMark(t.schema.options.Marks.ours())}}
}

func (t *Table) stoppedElements(members []MemberID) []nft.Element {
	elements := make([]nft.Element, len(members))
	for i, id := range members {
		elements[i].Key = encodeMark(t.schema.options.Marks.member(id))
	}
	return elements
}

func (t *Table) awaitedElements(members []MemberID, lasts time.Duration) []nft.Element {
	elements := make([]nft.Element, len(members))
	for i, id := range members {
		elements[i] = nft.Element{Key: encodeMark(t.schema.options.Marks.Mark(id, wire.Converter)), Timeout: lasts}
	}
	return elements
}

func (t *Table) decodeStopped(e nft.Element) (MemberID, bool) {
	if len(e.Key) != 4 {
		return 0, false
	}
	m := t.schema.options.Marks
	id, _, ours := m.OfMark(m.ours() | binary.NativeEndian.Uint32(e.Key))
	return id, ours
}
