package packet

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawMPTCP(t *rapid.T) MPTCP {
	nibble := rapid.Uint8Range(0, 15)
	twelve := rapid.Uint16Range(0, 0xfff)
	key := rapid.Custom(func(t *rapid.T) Key { return Key(rapid.Uint64().Draw(t, "key")) })
	number := func(long bool) uint64 {
		if long {
			return rapid.Uint64().Draw(t, "number")
		}
		return uint64(rapid.Uint32().Draw(t, "number"))
	}
	switch rapid.IntRange(0, 11).Draw(t, "subtype") {
	case 0:
		c := Capable{Version: rapid.Uint8Range(0, 1).Draw(t, "version"), Flags: anyByte.Draw(t, "flags")}
		c.Keys = rapid.IntRange(1-int(c.Version), 2).Draw(t, "keys")
		if c.Keys > 0 {
			c.Sender = key.Draw(t, "sender")
		}
		if c.Keys > 1 {
			c.Receiver = key.Draw(t, "receiver")
			if c.HasLength = c.Version > 0 && rapid.Bool().Draw(t, "data"); c.HasLength {
				c.Length = rapid.Uint16().Draw(t, "length")
				if c.HasChecksum = rapid.Bool().Draw(t, "checksum"); c.HasChecksum {
					c.Checksum = rapid.Uint16().Draw(t, "checksum")
				}
			}
		}
		return c
	case 1:
		return JoinSYN{nibble.Draw(t, "flags"), anyByte.Draw(t, "id"), rapid.Uint32().Draw(t, "token"), rapid.Uint32().Draw(t, "nonce")}
	case 2:
		return JoinSYNACK{nibble.Draw(t, "flags"), anyByte.Draw(t, "id"), [8]byte(someBytes(8, 8).Draw(t, "HMAC")), rapid.Uint32().Draw(t, "nonce")}
	case 3:
		return JoinACK{twelve.Draw(t, "reserved"), [20]byte(someBytes(20, 20).Draw(t, "HMAC"))}
	case 4:
		d := DSS{Flags: twelve.Draw(t, "flags")}
		if d.Flags&DSSAck != 0 {
			d.Ack = number(d.Flags&DSSAck8 != 0)
		}
		if d.Flags&DSSMap != 0 {
			d.Sequence = number(d.Flags&DSSMap8 != 0)
			d.Subflow, d.Length = rapid.Uint32().Draw(t, "subflow"), rapid.Uint16().Draw(t, "length")
			if d.HasChecksum = rapid.Bool().Draw(t, "checksum"); d.HasChecksum {
				d.Checksum = rapid.Uint16().Draw(t, "checksum")
			}
		}
		return d
	case 5:
		a := AddAddr{Version: rapid.Uint8Range(0, 1).Draw(t, "version"), AddressID: anyByte.Draw(t, "id")}
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "size")
		a.Address = drawAddr(t, size)
		if a.HasPort = rapid.Bool().Draw(t, "port"); a.HasPort {
			a.Port = rapid.Uint16().Draw(t, "port")
		}
		if a.Version > 0 {
			a.Flags = rapid.Uint8Range(0, 1).Draw(t, "echo")
		} else if a.Flags = 4; size == 16 {
			a.Flags = 6
		}
		if a.authenticated() {
			a.HMAC = [8]byte(someBytes(8, 8).Draw(t, "HMAC"))
		}
		return a
	case 6:
		return RemoveAddr{nibble.Draw(t, "reserved"), someBytes(1, 8).Draw(t, "ids")}
	case 7:
		p := Priority{Flags: nibble.Draw(t, "flags")}
		if p.HasAddressID = rapid.Bool().Draw(t, "with id"); p.HasAddressID {
			p.AddressID = anyByte.Draw(t, "id")
		}
		return p
	case 8:
		return Fail{twelve.Draw(t, "reserved"), rapid.Uint64().Draw(t, "sequence")}
	case 9:
		return FastClose{twelve.Draw(t, "reserved"), key.Draw(t, "key")}
	case 10:
		return Reset{nibble.Draw(t, "flags"), anyByte.Draw(t, "reason")}
	default:
		return MPUnknown{append([]byte{0x90 + rapid.Uint8Range(0, 0x6f).Draw(t, "subtype")}, someBytes(0, 8).Draw(t, "data")...)}
	}
}

func TestMPTCPDecodeIsInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMPTCP(t)
		got, err := m.Option().MPTCP()
		if err != nil {
			t.Fatalf("%+v: %v", m, err)
		}
		if diff := cmp.Diff(m, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Fatal(diff)
		}
	})
}

// The figures of RFC 6824 (version 0) and RFC 8684 (version 1), with values.
func TestMPTCPFigures(t *testing.T) {
	hmac8, address := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, netip.MustParseAddr("192.0.2.1")
	const a, b = Key(0x0102030405060708), Key(0x1112131415161718)
	keyA, keyB := "\x01\x02\x03\x04\x05\x06\x07\x08", "\x11\x12\x13\x14\x15\x16\x17\x18"
	for bytes, want := range map[string]MPTCP{
		"\x00\x81" + keyA:                             Capable{Flags: CapableChecksum | CapableHMAC, Keys: 1, Sender: a},
		"\x00\x01" + keyA + keyB:                      Capable{Flags: CapableHMAC, Keys: 2, Sender: a, Receiver: b},
		"\x01\x01":                                    Capable{Version: 1, Flags: CapableHMAC},
		"\x01\x21" + keyA:                             Capable{Version: 1, Flags: CapableNoJoin | CapableHMAC, Keys: 1, Sender: a},
		"\x01\x01" + keyA + keyB + "\x00\x05":         Capable{Version: 1, Flags: CapableHMAC, Keys: 2, Sender: a, Receiver: b, HasLength: true, Length: 5},
		"\x01\x81" + keyA + keyB + "\x00\x05\xab\xcd": Capable{Version: 1, Flags: CapableChecksum | CapableHMAC, Keys: 2, Sender: a, Receiver: b, HasLength: true, Length: 5, HasChecksum: true, Checksum: 0xabcd},
		"\x11\x05\x00\x00\x00\x07\x00\x00\x00\x08":    JoinSYN{Flags: Backup, AddressID: 5, Token: 7, Nonce: 8},
		"\x10\x05" + keyA + "\x00\x00\x00\x08":        JoinSYNACK{AddressID: 5, HMAC: hmac8, Nonce: 8},
		"\x20\x00":                                    DSS{},
		"\x20\x01\x00\x00\x00\x09":                    DSS{Flags: DSSAck, Ack: 9},
		"\x20\x17" + keyA + "\x00\x00\x00\x09\x00\x00\x00\x00\x00\x01": DSS{Flags: DSSFinish | DSSMap | DSSAck8 | DSSAck, Ack: uint64(a), Sequence: 9, Length: 1},
		"\x20\x0c" + keyA + "\x00\x00\x00\x02\x00\x05\xab\xcd":         DSS{Flags: DSSMap8 | DSSMap, Sequence: uint64(a), Subflow: 2, Length: 5, HasChecksum: true, Checksum: 0xabcd},
		"\x34\x02\xc0\x00\x02\x01":                                     AddAddr{Flags: 4, AddressID: 2, Address: address},
		"\x34\x02\xc0\x00\x02\x01\x00\x50":                             AddAddr{Flags: 4, AddressID: 2, Address: address, HasPort: true, Port: 80},
		"\x31\x02\xc0\x00\x02\x01":                                     AddAddr{Version: 1, Flags: AddAddrEcho, AddressID: 2, Address: address},
		"\x30\x02\xc0\x00\x02\x01\x00\x50" + keyA:                      AddAddr{Version: 1, AddressID: 2, Address: address, HasPort: true, Port: 80, HMAC: hmac8},
		"\x40\x02\x03":    RemoveAddr{AddressIDs: []byte{2, 3}},
		"\x51":            Priority{Flags: Backup},
		"\x51\x02":        Priority{Flags: Backup, HasAddressID: true, AddressID: 2},
		"\x60\x00" + keyA: Fail{Sequence: uint64(a)},
		"\x70\x00" + keyA: FastClose{Receiver: a},
		"\x81\x02":        Reset{Flags: ResetTransient, Reason: 2},
		"\xf0\x01":        MPUnknown{[]byte("\xf0\x01")},
	} {
		got, err := Option{KindMPTCP, []byte(bytes)}.MPTCP()
		if err != nil {
			t.Errorf("%x: %v", bytes, err)
			continue
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%x: %s", bytes, diff)
		}
	}
}

// Options with a length that is in no figure are malformed.
func TestMPTCPLengths(t *testing.T) {
	for first, lengths := range map[string][]int{
		"\x00\x01": {10, 18}, "\x01\x01": {2, 10, 18, 20, 22}, "\x10\x00": {10, 14, 22},
		"\x20\x00": {2}, "\x20\x01": {6}, "\x20\x03": {10}, "\x20\x04": {12, 14}, "\x20\x05": {16, 18}, "\x20\x0f": {24, 26},
		"\x30\x01": {14, 16, 26, 28}, "\x31\x01": {6, 8, 18, 20}, "\x34\x01": {6, 8, 14, 16, 26, 28}, "\x36\x01": {14, 16, 18, 20, 26, 28},
		"\x50\x00": {1, 2}, "\x60\x00": {10}, "\x70\x00": {10}, "\x80\x00": {2},
	} {
		for n := 1; n <= 38; n++ {
			data := make([]byte, max(n, 2))
			copy(data, first)
			m, err := Option{KindMPTCP, data[:n]}.MPTCP()
			wanted := false
			for _, l := range lengths {
				wanted = wanted || l == n
			}
			if (err == nil) != wanted || err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("%x with %d bytes: %+v, %v", first, n, m, err)
			}
		}
	}
	for _, o := range []Option{{KindMPTCP, nil}, {KindMSS, []byte{0x20, 0}}, {KindMPTCP, []byte{0x40}}} {
		if m, err := o.MPTCP(); err == nil {
			t.Errorf("%v: %+v", o, m)
		}
	}
}

func TestICMPQuotes(t *testing.T) {
	sent := &Packet{V4: &IPv4{TTL: 1, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")},
		TCP: &TCP{SrcPort: 1000, DstPort: 80, Seq: 7, Flags: SYN, Options: []Option{MSS(1460)}}, Payload: make([]byte, 200)}
	if err := sent.Seal(); err != nil {
		t.Fatal(err)
	}
	whole := sent.Bytes()
	labels := ExtensionObject{ClassMPLS, 1, []byte{0x12, 0x34, 0x51, 1}}
	router4 := func() *Packet {
		return &Packet{V4: &IPv4{Src: netip.MustParseAddr("10.0.1.1"), Dst: netip.MustParseAddr("10.0.0.1")}, ICMP: &ICMP{Type: TimeExceeded}}
	}
	router6 := func() *Packet {
		return &Packet{V6: &IPv6{Src: netip.MustParseAddr("fd00::1"), Dst: netip.MustParseAddr("fd00::2")}, ICMP: &ICMP{Type: V6TimeExceeded}}
	}
	for name, c := range map[string]struct {
		from    *Packet
		quoted  int
		objects []ExtensionObject
		length  byte // the length field; 0: objects begin after 128 bytes
		want    int
	}{
		"8 bytes of TCP":            {router4(), 28, nil, 0, 28},
		"all":                       {router4(), len(whole), nil, 0, len(whole)},
		"128 bytes and labels":      {router4(), 128, []ExtensionObject{labels}, 32, 128},
		"28 bytes, padded":          {router4(), 28, []ExtensionObject{labels, {2, 3, nil}}, 32, 128},
		"all and labels":            {router4(), len(whole), []ExtensionObject{labels}, 61, len(whole)},
		"IPv6: 128 and labels":      {router6(), 128, []ExtensionObject{labels}, 16, 128},
		"IPv6: 48 bytes":            {router6(), 48, nil, 0, 48},
		"labels without the length": {router4(), 128, []ExtensionObject{labels}, 0, 128},
	} {
		p := c.from
		if err := p.SetQuote(whole[:c.quoted], c.objects...); err != nil {
			t.Fatal(err)
		}
		unit, _ := p.quoteUnit()
		p.ICMP.Data[lengthAt(unit)] = c.length
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		got, err := Parse(p.Bytes())
		if err != nil || got.Verify() != nil {
			t.Fatal(err, got.Verify())
		}
		q, err := got.Quote()
		if err != nil || len(q.Bytes) != c.want || !bytes.Equal(q.Bytes[:c.quoted], whole[:c.quoted]) || q.Extended != (c.length > 0) {
			t.Errorf("%s: %+v, %v", name, q, err)
			continue
		}
		if diff := cmp.Diff(c.objects, q.Objects, cmp.Transformer("data", func(b []byte) string { return string(b) })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if len(q.Objects) > 0 {
			if l, ok := q.Objects[0].Labels(); !ok || len(l) != 1 || l[0] != 0x12345 {
				t.Errorf("%s: labels %#x", name, l)
			}
		}
		inner, err := ParseQuote(q.Bytes)
		if err != nil || inner.TCP == nil || inner.From() != sent.From() || inner.TCP.Seq != 7 || inner.Missing != len(whole)-c.want {
			t.Errorf("%s: %+v, %v", name, inner, err)
		}
		checkRoundTrip(t, q.Bytes, inner)
		if inner.Cut > 0 != (c.want == 28) {
			t.Errorf("%s: cut at %d", name, inner.Cut)
		}
	}
	// Lengths beyond the end of the packet, and below the minimum.
	p := router4()
	for _, length := range []byte{8, 5, 1, 255} {
		p.Payload, p.ICMP.Data[1] = whole[:28], length
		if err := p.Seal(); err != nil {
			t.Fatal(err)
		}
		if q, err := p.Quote(); err != nil || !bytes.Equal(q.Bytes, whole[:28]) || q.Extended {
			t.Errorf("length %d: %+v, %v", length, q, err)
		}
	}
	p.ICMP.Type = 0 // echo reply
	if _, err := p.Quote(); !errors.Is(err, ErrNoQuote) {
		t.Error(err)
	}
	// Routers that write a wrong length.
	for _, length := range []uint16{0, 8, 28, 20, 0xffff} {
		sent.V4.Length = length
		inner, err := ParseQuote(sent.Bytes())
		if err != nil || (length != 20) != (inner.TCP != nil) {
			t.Errorf("length %d: %+v, %v", length, inner, err)
			continue
		}
		checkRoundTrip(t, sent.Bytes(), inner)
	}
}
