package stun

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func messages() []Message {
	return []Message{
		{ID: ID{1}, Request: true},
		{ID: ID{2}, Request: true, OtherPort: true},
		{ID: ID{3}, Seen: netip.MustParseAddrPort("192.0.2.1:45672")},
		{ID: ID{4, 11: 255}, Seen: netip.MustParseAddrPort("[2001:db8::7]:1")},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, m := range messages() {
		b := m.Append([]byte("before"))[len("before"):]
		if got, err := Parse(b); err != nil || got != m {
			t.Errorf("%+v came back as %+v, %v", m, got, err)
		}
		if m.Request && len(b) != Size || len(b) > Size {
			t.Errorf("%+v takes %d bytes", m, len(b))
		}
		if b[0]&0xc0 != 0 {
			t.Errorf("%+v looks like QUIC", m)
		}
		for i := range b {
			broken := bytes.Clone(b)
			broken[i] ^= 0x10
			if _, err := Parse(broken); err == nil {
				t.Errorf("%+v is taken although byte %d is broken", m, i)
			}
			if _, err := Parse(b[:i]); err == nil {
				t.Errorf("%+v is taken although it ends at byte %d", m, i)
			}
		}
	}
}

// The answers in RFC 5769, 2.2 and 2.3, have integrity attributes, which we do not check, and addresses, which we must
// decode.
func TestVectors(t *testing.T) {
	const head = "2112a442b7e7a701bc34d686fa87dfae"
	const software = "8022000b7465737420766563746f7220"
	for _, v := range []struct{ name, packet, want string }{
		{"IPv4", "0101003c" + head + software + "002000080001a147e112a643" +
			"000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7" + "80280004c07d4c96", "192.0.2.1:32853"},
		{"IPv6", "01010048" + head + software + "002000140002a1470113a9faa5d3f179bc25f4b5bed2b9d9" +
			"00080014a382954e4be67bf11784c97c8292c275bfe3ed41" + "80280004c8fb0b4c", "[2001:db8:1234:5678:11:2233:4455:6677]:32853"},
	} {
		b, err := hex.DecodeString(v.packet)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Parse(b)
		if err != nil || m.Seen.String() != v.want {
			t.Errorf("%s: %v, %v; want %s", v.name, m.Seen, err, v.want)
		}
	}
}

func TestRefusal(t *testing.T) {
	b := Message{Seen: netip.MustParseAddrPort("192.0.2.1:1")}.Append(nil)
	b[1] = 0x11
	if _, err := Parse(refingerprint(b)); !errors.Is(err, ErrRefused) {
		t.Errorf("an error answer: %v", err)
	}
}

func TestForeign(t *testing.T) {
	request := Message{Request: true}.Append(nil)
	for _, c := range []struct {
		name   string
		change func(b []byte)
	}{
		{"an allocation", func(b []byte) { b[1] = 3 }},
		{"another address is asked for", func(b []byte) { b[27] = 6 }},
		{"an attribute that must be understood", func(b []byte) { b[21] = 0x19 }},
		{"an attribute beyond the end", func(b []byte) { b[30], b[31] = 0xff, 0xff }},
	} {
		b := bytes.Clone(request)
		c.change(b)
		if m, err := Parse(refingerprint(b)); !errors.Is(err, ErrNotSTUN) {
			t.Errorf("%s: %+v, %v", c.name, m, err)
		}
	}
	if _, err := Parse([]byte(strings.Repeat("\x00", 4*maxSize))); !errors.Is(err, ErrNotSTUN) {
		t.Errorf("a long packet: %v", err)
	}
}

// refingerprint gives a changed packet the right fingerprint.
func refingerprint(b []byte) []byte {
	b = bytes.Clone(b)
	body := b[:len(b)-fingerprintSize]
	copy(b[len(body):], appendFingerprint(bytes.Clone(body))[len(body):])
	return b
}

func FuzzParse(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// The fuzzer does not find checksums, so its input is also tried with the right one.
		for _, b := range [][]byte{b, refingerprintAny(b)} {
			m, err := Parse(b)
			if err != nil {
				continue
			}
			if again, err := Parse(m.Append(nil)); err != nil || again != m {
				t.Fatalf("%+v came back as %+v, %v", m, again, err)
			}
		}
	})
}

func refingerprintAny(b []byte) []byte {
	if len(b) < headerSize+fingerprintSize {
		return b
	}
	return refingerprint(b)
}
