package rfc8803

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// The bytes follow the figures of section 6.
func TestBytes(t *testing.T) {
	for name, c := range map[string]struct {
		message Message
		bytes   string
	}{
		"nothing": {Message{}, "01 01 2263"},
		"info":    {Message{Info: true}, "01 02 2263  01 01 0000"},
		"connect, IPv4": {
			Message{Connect: &Connect{Server: netip.MustParseAddrPort("192.0.2.1:443")}},
			"01 06 2263  0a 05 01bb 00000000 00000000 0000ffff c0000201",
		},
		"connect, IPv6, options, cookie": {
			Message{
				Connect: &Connect{Server: netip.MustParseAddrPort("[2001:db8::1]:80"), Options: []byte{2, 4, 5, 0xb4}},
				Cookie:  []byte{1, 2, 3, 4},
			},
			"01 09 2263  0a 06 0050 20010db8 00000000 00000000 00000001 020405b4  16 02 0000 01020304",
		},
		"extended header":   {Message{ExtendedHeader: []byte{30, 4, 0, 1}}, "01 03 2263  14 02 0000 1e040001"},
		"supported":         {Message{Supported: &Supported{Kinds: []byte{2, 3, 4, 8, 30}}}, "01 04 2263  15 03 0000 02030408 1e000000"},
		"error":             {Message{Error: &Error{Code: ConnectionReset}}, "01 02 2263  1e 01 60 00"},
		"error with a list": {Message{Error: &Error{Code: UnsupportedTCPOption, Value: []byte{40, 41}}}, "01 03 2263  1e 02 21 28 29000000"},
		"error with a message": {
			Message{Error: Echo(UnsupportedMessage, []byte{1, 2, 0x22, 0x63, 40, 1, 0, 0, 'd', 'a', 't', 'a'})},
			"01 04 2263  1e 03 02 00 01022263 28010000",
		},
		"error with a cookie": {
			Message{Error: &Error{Code: MissingCookie, Value: []byte{1, 2, 3, 4, 0, 0, 0, 0}}}, "01 04 2263  1e 03 03 00 01020304 00000000",
		},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.bytes, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.message.Append(nil)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %x, %v, want %x", name, got, err, want)
		}
		m, n, err := Decode(append(want, "data"...))
		if err != nil || n != len(want) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		if diff := cmp.Diff(c.message, m, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: -encoded +decoded\n%s", name, diff)
		}
	}
}

func TestBadMessages(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		want  error
	}{
		"empty":                   {"", ErrShort},
		"three bytes":             {"010122", ErrShort},
		"another protocol":        {"47455420", ErrMalformed},
		"another magic number":    {"01012264", ErrMalformed},
		"length 0":                {"01002263", ErrNoLength},
		"cut off":                 {"01022263 0101", ErrShort},
		"a TLV of length 0":       {"01022263 01000000", ErrMalformed},
		"a TLV beyond the end":    {"01022263 16020000", ErrMalformed},
		"connect without address": {"01022263 0a010050", ErrMalformed},
		"half an address":         {"01042263 0a030050 20010db8 00000000", ErrMalformed},
		"info with a value":       {"01032263 01020000 00000000", ErrMalformed},
		"two of a kind":           {"01032263 01010000 01010000", ErrMalformed},
		"the reserved type":       {"01022263 00010000", ErrReserved},
		"two unknown of a kind":   {"01032263 28010000 28010000", ErrMalformed},
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(c.bytes, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := Decode(b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, _, err := Decode([]byte{2, 1, 0x22, 0x63}); !errors.Is(err, VersionError{2}) {
		t.Errorf("another version: %v", err)
	}
	// Known TLVs beside unknown ones are decoded, so that the answer can list the unknown ones.
	m, n, err := Decode([]byte{1, 4, 0x22, 0x63, 40, 1, 0, 0, 1, 1, 0, 0, 41, 1, 0, 0})
	var unknown UnknownError
	if !errors.As(err, &unknown) || !slices.Equal(unknown.Types, []byte{40, 41}) || !m.Info || n != 16 {
		t.Errorf("unknown TLVs: %+v, %d, %v", m, n, err)
	}
	if _, err := (Message{Cookie: make([]byte, MaxLen)}).Append(nil); err == nil {
		t.Error("a message of more than 255 words was encoded")
	}
}

// What is encoded is decoded, but for padding.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := func(name string) []byte {
			b := rapid.SliceOfN(rapid.Byte(), 0, 32).Draw(t, name)
			return b[:len(b)&^3]
		}
		endless := func(name string) []byte { return withoutPadding(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, name)) }
		var m Message
		m.Info = rapid.Bool().Draw(t, "info")
		if rapid.Bool().Draw(t, "connect") {
			addr := netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address"))).Unmap()
			m.Connect = &Connect{netip.AddrPortFrom(addr, rapid.Uint16().Draw(t, "port")), words("options")}
		}
		if rapid.Bool().Draw(t, "extended") {
			m.ExtendedHeader = words("header")
		}
		if rapid.Bool().Draw(t, "supported") {
			m.Supported = &Supported{endless("kinds")}
		}
		if rapid.Bool().Draw(t, "cookie") {
			m.Cookie = words("cookie")
		}
		if rapid.Bool().Draw(t, "error") {
			code := ErrorCode(rapid.Byte().Draw(t, "code"))
			m.Error = &Error{code, endless("value")}
			if code.hasAlignedValue() {
				m.Error.Value = words("value")
			}
		}
		b, err := m.Append([]byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		got, n, err := Decode(b[len("before"):])
		if err != nil || n != len(b)-len("before") {
			t.Fatalf("%d of %d bytes, %v", n, len(b)-len("before"), err)
		}
		if diff := cmp.Diff(m, got, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// The client learns the error of the converter's connect(), with the ICMP code for it.
func TestErrorsOfConnect(t *testing.T) {
	for errno, want := range map[syscall.Errno]struct {
		code        ErrorCode
		icmp, icmp6 []byte
	}{
		syscall.ECONNREFUSED: {code: ConnectionReset},
		syscall.ECONNRESET:   {code: ConnectionReset},
		syscall.ETIMEDOUT:    {code: NetworkFailure},
		syscall.ENETUNREACH:  {DestinationUnreachable, []byte{0}, []byte{0}},
		syscall.EHOSTUNREACH: {DestinationUnreachable, []byte{1}, []byte{3}},
		syscall.EACCES:       {DestinationUnreachable, []byte{13}, []byte{1}},
		syscall.EPERM:        {DestinationUnreachable, []byte{13}, []byte{1}},
		syscall.EMFILE:       {code: ResourceExceeded}, // says nothing about the server
	} {
		for addr, icmp := range map[string][]byte{"192.0.2.1": want.icmp, "::ffff:192.0.2.1": want.icmp, "2001:db8::1": want.icmp6} {
			e := ErrorOf(errno, netip.MustParseAddr(addr))
			if e.Code != want.code || !bytes.Equal(e.Value, icmp) || e.ConcernsServer() != (want.code != ResourceExceeded) {
				t.Errorf("%v of %s: %+v, concerns the server %v", errno, addr, e, e.ConcernsServer())
			}
		}
	}
	for _, code := range []ErrorCode{UnsupportedVersion, MalformedMessage, UnsupportedMessage, MissingCookie, NotAuthorized, UnsupportedTCPOption} {
		if (&Error{Code: code}).ConcernsServer() {
			t.Errorf("%v concerns the server", code)
		}
	}
}

// An error repeats the message, not what follows it. It fits into a message itself.
func TestEcho(t *testing.T) {
	for name, c := range map[string]struct {
		bytes, want []byte
	}{
		"data follows":         {[]byte{1, 1, 0x22, 0x63, 'd'}, []byte{1, 1, 0x22, 0x63}},
		"another magic number": {[]byte("GET / HTTP/1.1\r\n"), []byte("GET ")},
		"the longest message":  {append([]byte{1, 255, 0x22, 0x63}, make([]byte, 2000)...), append([]byte{1, 255, 0x22, 0x63}, make([]byte, 1008)...)},
	} {
		e := Echo(MalformedMessage, c.bytes)
		if !bytes.Equal(e.Value, c.want) {
			t.Errorf("%s: %d bytes, %x", name, len(e.Value), e.Value)
		}
		if _, err := (Message{Error: e}).Append(nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A converter that lacks resources is left alone for the time that it states, or for half a minute.
func TestWait(t *testing.T) {
	for _, c := range []struct {
		code  ErrorCode
		value []byte
		want  time.Duration
	}{
		{ResourceExceeded, nil, 30 * time.Second},
		{ResourceExceeded, []byte{90}, 90 * time.Second},
		{NetworkFailure, []byte{7}, 7 * time.Second},
		{NetworkFailure, nil, 0},
		{NotAuthorized, nil, 0},
		{DestinationUnreachable, []byte{13}, 0},
	} {
		if got := (&Error{Code: c.code, Value: c.value}).Wait(); got != c.want {
			t.Errorf("%v with %v: %v, want %v", c.code, c.value, got, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range []Message{
		{Info: true}, {Connect: &Connect{Server: netip.MustParseAddrPort("192.0.2.1:443")}, Cookie: []byte("abcd")}, {Error: &Error{Code: 96}},
	} {
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, n, err := Decode(b)
		if err != nil {
			return
		}
		again, err := m.Append(nil)
		if err != nil || len(again) > n+wordLen {
			t.Fatalf("%d bytes become %d: %v", n, len(again), err)
		}
		same, _, err := Decode(again)
		if diff := cmp.Diff(m, same, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	})
}
