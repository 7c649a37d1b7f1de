package client

import (
	"testing"

	"github.com/detour-collective/dcol/internal/converter/engine"
)

// FuzzSOCKS and FuzzCONNECT read arbitrary bytes in any pieces. Openings that connect use no more bytes than they got,
// and those that end give the reason.
func FuzzSOCKS(f *testing.F) {
	for _, s := range []string{
		"\x05\x01\x00\x05\x01\x00\x01\xcb\x00\x71\x01\x01\xbbdata", "\x05\x02\x00\x01\x05\x01\x00\x03\x09192.0.2.1\x01\xbb",
		"\x05\x01\x00\x05\x01\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50", "\x04\x01", "\x05\x01\x02", "\x05\x01\x00\x05\x02\x00\x01\x00",
	} {
		f.Add([]byte(s), 5)
	}
	f.Fuzz(func(t *testing.T, b []byte, first int) { feed(t, New(Config{}).SOCKS(), b, first) })
}

func FuzzCONNECT(f *testing.F) {
	for _, s := range []string{
		"CONNECT 192.0.2.1:443 HTTP/1.1\r\nHost: x\r\n\r\ndata", "CONNECT [2001:db8::1]:80 HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\n", "CONNECT name HTTP/1.1\r\n\r\n",
	} {
		f.Add([]byte(s), 9)
	}
	f.Fuzz(func(t *testing.T, b []byte, first int) { feed(t, New(Config{}).CONNECT(), b, first) })
}

// feed gives an opening bytes in two pieces, as the engine does.
func feed(t *testing.T, front engine.Front, b []byte, first int) {
	o, err := front.Open(engine.Accepted{})
	if err != nil {
		t.Fatal(err)
	}
	if s := o.Read(nil); s.Dial != nil || s.Close || s.Later != nil {
		t.Fatalf("before any bytes: %+v", s)
	}
	first = max(0, min(first, len(b)))
	s := engine.Step{}
	if first > 0 {
		s = o.Read(b[:first])
	}
	if used := s.Used; s.Dial == nil && s.Later == nil && !s.Close && first < len(b) {
		if used > first {
			t.Fatalf("%d of %d bytes used", used, first)
		}
		b = b[used:]
		s = o.Read(b)
	}
	switch {
	case s.Used > len(b):
		t.Fatalf("%d of %d bytes used", s.Used, len(b))
	case s.Dial != nil && (!s.Dial.To.IsValid() || s.Close || s.Later != nil):
		t.Fatalf("%+v", s)
	case s.Close && s.Later != nil:
		t.Fatalf("%+v", s)
	}
}
