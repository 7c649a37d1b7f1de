package wire

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Whatever arrives, the decoder neither panics nor loops, and a decoded message can be encoded again.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{})
	for _, m := range []Message{
		Hello{Version: 1, Offers: []Kind{Mapped, 9}, Lease: time.Minute, Observed: netip.MustParseAddrPort("[2001:db8::1]:1")},
		Hello{Version: 1, Session: SessionID{1}},
		Hello{Version: 1, LoadedFor: 10 * time.Second},
		Hello{Version: 1, LoadedFor: 10 * time.Second, LoadedGives: 1 << 40},
		Hello{Version: 1, Closed: OutsideHours, ClosedFor: time.Hour, LoadedFor: 365 * 24 * time.Hour},
		Refusal{ID: 1, Code: Loaded, RetryAfter: 10 * time.Second},
		MapRequest{ID: 1, Server: netip.MustParseAddrPort("192.0.2.7:443"), Sole: true},
		Attestation{Time: time.UnixMilli(1), Signature: make([]byte, 64)},
		MapRequest{ID: 1, Server: netip.MustParseAddrPort("192.0.2.7:443"), Proposed: 443},
		MapGrant{ID: 1, Port: 443, Lease: time.Minute, Client: netip.MustParseAddr("192.0.2.1")},
		Refusal{ID: 1, Code: Busy, Message: "later", RetryAfter: time.Second},
		Ping{ID: 1},
		Left{From: netip.MustParseAddrPort("192.0.2.1:1")},
		Pong{ID: 1, Observed: netip.MustParseAddrPort("192.0.2.1:1")},
		TunnelRequest{ID: 1, Kind: WireGuard, Local: netip.MustParseAddr("192.0.2.1"), PublicKey: make([]byte, publicKeySize),
			Avoid: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}, Port: 40000},
		TunnelGrant{ID: 1, Kind: InBand, Lease: time.Minute, Client: netip.MustParseAddr("192.0.2.1"), Key: make([]byte, keySize), ClientPort: true},
		TunnelGrant{ID: 1, Kind: WireGuard, Lease: time.Minute, Client: netip.MustParseAddr("2001:db8::1"), PublicKey: make([]byte, publicKeySize),
			Port: 51820, Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}, MTU: 1420},
		TunnelRequest{ID: 1, Kind: Converter, Port: 5125, Incoming: []Incoming{{80, make([]byte, cookieSize)}, {443, make([]byte, cookieSize)}}},
		TunnelGrant{ID: 1, Kind: Converter, Lease: time.Minute, Client: netip.MustParseAddr("192.0.2.1"), Port: 5124, Cookie: make([]byte, cookieSize),
			Incoming: []IncomingGrant{{Port: 80}, {443, PortTaken}}},
	} {
		frame, err := Append(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		d := NewDecoder(bytes.NewReader(stream))
		for range len(stream) + 1 {
			m, err := d.Next()
			var malformed *MalformedError
			if errors.As(err, &malformed) {
				continue
			}
			if err != nil {
				return
			}
			again, err := Append(nil, m)
			if err != nil {
				t.Fatalf("understood %+v but cannot say it: %v", m, err)
			}
			back, err := NewDecoder(bytes.NewReader(again)).Next()
			if err != nil {
				t.Fatalf("%+v: %v", m, err)
			}
			if diff := cmp.Diff(m, back, compare, compareAddr, comparePrefix); diff != "" {
				t.Fatal(diff)
			}
		}
		t.Fatal("the decoder does not end")
	})
}

func BenchmarkRequestRoundTrip(b *testing.B) {
	b.ReportAllocs()
	var buf []byte
	r := bytes.NewReader(nil)
	d := NewDecoder(r)
	for b.Loop() {
		var err error
		if buf, err = Append(buf[:0], MapRequest{ID: 1 << 20, Server: netip.MustParseAddrPort("192.0.2.7:443"), Proposed: 443}); err != nil {
			b.Fatal(err)
		}
		r.Reset(buf)
		if _, err := d.Next(); err != nil {
			b.Fatal(err)
		}
	}
}
