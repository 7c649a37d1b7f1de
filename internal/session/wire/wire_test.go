package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var compare = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
var comparePrefix = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// The exact bytes of each message, so that a change of the encoding is noticed.
func TestBytes(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("192.0.2.7:443"), netip.MustParseAddrPort("[2001:db8::7]:80")
	tests := []struct {
		message Message
		want    string
	}{
		{Hello{Version: 1}, "0004" + "01" + "a10101"},
		{Hello{Version: 1, Offers: []Kind{Mapped}, Lease: 10 * time.Minute, Observed: v4},
			"0015" + "01" + "a4" + "0101" + "028101" + "031a000927c0" + "0446c000020701bb"},
		{Hello{Version: 1, Closed: OutsideHours, ClosedFor: time.Second}, "000a" + "01" + "a3" + "0101" + "050c" + "061903e8"},
		{Hello{Version: 1, Session: SessionID(bytes.Repeat([]byte{0xcc}, 16))}, "0016" + "01" + "a2" + "0101" + "0750" + strings.Repeat("cc", 16)},
		{Attestation{Time: time.UnixMilli(1000), Signature: bytes.Repeat([]byte{0xdd}, 64)},
			"0049" + "09" + "a2" + "021903e8" + "035840" + strings.Repeat("dd", 64)},
		{MapRequest{ID: 7, Server: v4, Proposed: 443}, "0010" + "02" + "a3" + "0107" + "0246c000020701bb" + "031901bb"},
		{MapRequest{ID: 7, Server: v6}, "0018" + "02" + "a2" + "0107" + "025220010db80000000000000000000000070050"},
		{MapGrant{ID: 7, Port: 443, Lease: time.Second, Client: v4.Addr()}, "0012" + "03" + "a4" + "0107" + "021901bb" + "031903e8" + "0444c0000207"},
		{Refusal{ID: 7, Code: Busy, Message: "later", RetryAfter: time.Second}, "0011" + "04" + "a4" + "0107" + "0209" + "03656c61746572" + "041903e8"},
		{Ping{ID: 7}, "001f" + "05" + "a2" + "0107" + "025818" + strings.Repeat("00", 24)},
		{Pong{ID: 7, Observed: v4}, "000c" + "06" + "a2" + "0107" + "0246c000020701bb"},
		{Left{From: v4}, "000a" + "0a" + "a1" + "0246c000020701bb"},
		{TunnelRequest{ID: 7, Kind: InBand}, "0006" + "07" + "a2" + "0107" + "0202"},
		{TunnelRequest{ID: 7, Kind: WireGuard, Local: v4.Addr(), PublicKey: bytes.Repeat([]byte{0xaa}, 32),
			Avoid: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8"), netip.MustParsePrefix("2001:db8::/32")}},
			"0049" + "07" + "a5" + "0107" + "0203" + "0344c0000207" + "045820" + strings.Repeat("aa", 32) +
				"0582" + "450a00000008" + "5120010db800000000000000000000000020"},
		{TunnelGrant{ID: 7, Kind: InBand, Lease: time.Minute, Client: v4.Addr(), Key: bytes.Repeat([]byte{0xbb}, 16), ClientPort: true},
			"0024" + "08" + "a6" + "0107" + "0202" + "0319ea60" + "0444c0000207" + "0550" + strings.Repeat("bb", 16) + "06f5"},
		{TunnelGrant{ID: 7, Kind: WireGuard, Lease: time.Minute, Client: v4.Addr(), PublicKey: bytes.Repeat([]byte{0xaa}, 32), Port: 51820,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}, MTU: 1420},
			"0043" + "08" + "a8" + "0107" + "0203" + "0319ea60" + "0444c0000207" + "075820" + strings.Repeat("aa", 32) +
				"0819ca6c" + "0981" + "450a09000518" + "0a19058c"},
		{TunnelRequest{ID: 7, Kind: Converter, Port: 5125, Incoming: []Incoming{{Port: 8080, Cookie: bytes.Repeat([]byte{0xee}, 24)}}},
			"002c" + "07" + "a4" + "0107" + "0205" + "06191405" + "0781" + "a2" + "01191f90" + "025818" + strings.Repeat("ee", 24)},
		{TunnelGrant{ID: 7, Kind: Converter, Lease: time.Minute, Client: v4.Addr(), Port: 5124, Cookie: bytes.Repeat([]byte{0xee}, 24),
			Incoming: []IncomingGrant{{Port: 8080}, {Port: 22, Refused: PortForbidden}}},
			"003b" + "08" + "a7" + "0107" + "0205" + "0319ea60" + "0444c0000207" + "08191404" + "0b5818" + strings.Repeat("ee", 24) +
				"0c82" + "a101191f90" + "a2" + "0116" + "0211"},
		{TunnelRequest{ID: 7, Kind: Converter, From: netip.MustParseAddr("10.192.0.2")},
			"000c" + "07" + "a3" + "0107" + "0205" + "08440ac00002"},
		{TunnelGrant{ID: 7, Kind: Converter, Lease: time.Minute, Client: v4.Addr(), Port: 5124, From: netip.MustParseAddr("10.192.0.2")},
			"001a" + "08" + "a6" + "0107" + "0205" + "0319ea60" + "0444c0000207" + "08191404" + "0d440ac00002"},
		{TunnelRequest{ID: 7, Kind: Converter, From: netip.MustParseAddr("10.192.0.2"), To: v4.Addr()},
			"0012" + "07" + "a4" + "0107" + "0205" + "08440ac00002" + "0944c0000207"},
		{TunnelGrant{ID: 7, Kind: Converter, Lease: time.Minute, Client: v4.Addr(), Port: 5124, From: netip.MustParseAddr("10.192.0.2"), At: netip.MustParseAddr("10.192.0.1")},
			"0020" + "08" + "a7" + "0107" + "0205" + "0319ea60" + "0444c0000207" + "08191404" + "0d440ac00002" + "0e440ac00001"},
	}
	for _, test := range tests {
		got, err := Append(nil, test.message)
		if err != nil {
			t.Errorf("%+v: %v", test.message, err)
			continue
		}
		if hex.EncodeToString(got) != test.want {
			t.Errorf("%+v:\n got %x\nwant %s", test.message, got, test.want)
		}
	}
}

func drawMessage(t *rapid.T) Message {
	addr := rapid.Custom(func(t *rapid.T) netip.Addr {
		if rapid.Bool().Draw(t, "v4") {
			return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "a4")))
		}
		return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "a16"))).Unmap()
	})
	endpoint := rapid.Custom(func(t *rapid.T) netip.AddrPort {
		return netip.AddrPortFrom(addr.Draw(t, "addr"), rapid.Uint16Min(1).Draw(t, "port"))
	})
	duration := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(0, int64(maxDuration/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
	})
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		a := addr.Draw(t, "addr")
		return netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
	})
	bytesOrNone := func(what string, size int) []byte {
		if !rapid.Bool().Draw(t, what+" there") {
			return nil
		}
		return rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, what)
	}
	prefixes := func(what string, most int) (out []netip.Prefix) {
		return append(out, rapid.SliceOfN(prefix, 0, most).Draw(t, what)...)
	}
	id := rapid.Uint64().Draw(t, "id")
	switch rapid.IntRange(0, 9).Draw(t, "type") {
	case 0:
		h := Hello{Version: uint(rapid.Uint16().Draw(t, "version")), Lease: duration.Draw(t, "lease"),
			Closed: Code(rapid.Uint8().Draw(t, "closed")), ClosedFor: duration.Draw(t, "closed for")}
		if n := rapid.SliceOfN(rapid.Uint16(), 0, maxOffers).Draw(t, "offers"); len(n) > 0 {
			for _, k := range n {
				h.Offers = append(h.Offers, Kind(k))
			}
		}
		if rapid.Bool().Draw(t, "observed") {
			h.Observed = endpoint.Draw(t, "endpoint")
		}
		if rapid.Bool().Draw(t, "session there") {
			h.Session = SessionID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "session"))
		}
		return h
	case 1:
		return MapRequest{ID: id, Server: endpoint.Draw(t, "server"), Proposed: rapid.Uint16().Draw(t, "proposed")}
	case 2:
		return MapGrant{ID: id, Port: rapid.Uint16Min(1).Draw(t, "port"), Lease: duration.Draw(t, "lease"), Client: addr.Draw(t, "client")}
	case 3:
		return Refusal{ID: id, Code: Code(rapid.Uint8().Draw(t, "code")), Message: cleanText(rapid.String().Draw(t, "message")), RetryAfter: duration.Draw(t, "retry")}
	case 4:
		return Ping{ID: id}
	case 5:
		r := TunnelRequest{ID: id, Kind: Kind(rapid.Uint16Min(1).Draw(t, "kind")), PublicKey: bytesOrNone("public key", publicKeySize)}
		for _, p := range prefixes("avoid", maxAvoid) {
			r.Avoid = append(r.Avoid, p.Masked())
		}
		if rapid.Bool().Draw(t, "local there") {
			r.Local = addr.Draw(t, "local")
		}
		if rapid.Bool().Draw(t, "from there") {
			r.From, r.To = addr.Draw(t, "from"), addr.Draw(t, "to")
		}
		for _, port := range rapid.SliceOfNDistinct(rapid.Uint16Min(1), 0, MostIncoming, rapid.ID[uint16]).Draw(t, "incoming") {
			r.Port = 5125
			r.Incoming = append(r.Incoming, Incoming{port, rapid.SliceOfN(rapid.Byte(), cookieSize, cookieSize).Draw(t, "cookie")})
		}
		return r
	case 6:
		g := TunnelGrant{
			ID: id, Kind: Kind(rapid.Uint16Min(1).Draw(t, "kind")), Lease: duration.Draw(t, "lease"), Client: addr.Draw(t, "client"),
			Key: bytesOrNone("key", keySize), ClientPort: rapid.Bool().Draw(t, "client port"), PublicKey: bytesOrNone("public key", publicKeySize),
			Port: rapid.Uint16().Draw(t, "port"), Addresses: prefixes("addresses", maxAddresses), MTU: rapid.Uint16().Draw(t, "mtu"),
		}
		for range rapid.IntRange(0, MostIncoming).Draw(t, "incoming") {
			g.Incoming = append(g.Incoming, IncomingGrant{rapid.Uint16Min(1).Draw(t, "incoming port"), Code(rapid.Uint8().Draw(t, "code"))})
		}
		if rapid.Bool().Draw(t, "from there") {
			g.From, g.At = addr.Draw(t, "from"), addr.Draw(t, "at")
		}
		return g
	case 7:
		return Left{From: endpoint.Draw(t, "from")}
	case 8:
		return Attestation{Time: time.UnixMilli(rapid.Int64Range(0, maxTimeMillis).Draw(t, "time")).UTC(),
			Signature: rapid.SliceOfN(rapid.Byte(), 64, 64).Draw(t, "signature")}
	default:
		return Pong{ID: id, Observed: endpoint.Draw(t, "observed")}
	}
}

// Encoded messages decode to the same, however the stream is split.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Custom(drawMessage), 1, 20).Draw(t, "messages")
		var stream []byte
		for _, m := range want {
			var err error
			if stream, err = Append(stream, m); err != nil {
				t.Fatalf("%+v: %v", m, err)
			}
		}
		var r io.Reader = bytes.NewReader(stream)
		if rapid.Bool().Draw(t, "bytewise") {
			r = iotest.OneByteReader(r)
		}
		d := NewDecoder(r)
		for _, m := range want {
			got, err := d.Next()
			if err != nil {
				t.Fatalf("%+v: %v", m, err)
			}
			if diff := cmp.Diff(m, got, compare, compareAddr, comparePrefix); diff != "" {
				t.Fatal(diff)
			}
		}
		if _, err := d.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: %v", err)
		}
	})
}

func frame(t Type, body string) []byte {
	b, err := hex.DecodeString(body)
	if err != nil {
		panic(err)
	}
	n := len(b) + 1
	return append([]byte{byte(n >> 8), byte(n), byte(t)}, b...)
}

// The error for a malformed message names its id, and the next message is decoded.
func TestMalformedIsSurvived(t *testing.T) {
	tests := map[string]struct {
		frame []byte
		id    uint64
	}{
		"unknown type":          {frame(200, "a10107"), 7},
		"unknown type, no id":   {frame(200, ""), 0},
		"no body":               {frame(TypeMapRequest, ""), 0},
		"not a map":             {frame(TypeMapRequest, "83010203"), 0},
		"key twice":             {frame(TypeMapRequest, "a3010701080246c000020701bb"), 0},
		"no server":             {frame(TypeMapRequest, "a10107"), 7},
		"server of 3 bytes":     {frame(TypeMapRequest, "a201070243c00002"), 7},
		"server port 0":         {frame(TypeMapRequest, "a201070246c00002070000"), 7},
		"IPv4 in 16 bytes":      {frame(TypeMapRequest, "a20107025200000000000000000000ffffc000020701bb"), 7},
		"proposed port 65536":   {frame(TypeMapRequest, "a301070246c000020701bb031a00010000"), 7},
		"indefinite length":     {frame(TypeMapRequest, "bf0107ff"), 0},
		"tag":                   {frame(TypeMapRequest, "c1a10107"), 0},
		"trailing bytes":        {frame(TypePing, "a1010700"), 0},
		"nested too deep":       {frame(TypePing, "a201070381818181818181810a"), 0},
		"grant of port 0":       {frame(TypeMapGrant, "a401070200031903e80444c0000207"), 7},
		"lease without end":     {frame(TypeMapGrant, "a4010702190050031bffffffffffffffff0444c0000207"), 7},
		"message not UTF-8":     {frame(TypeRefusal, "a30107020903"+"62ff80"), 7},
		"more offers than fit":  {frame(TypeHello, "a2010102"+"91"+strings.Repeat("01", 17)), 0},
		"tunnel of no kind":     {frame(TypeTunnelRequest, "a10107"), 7},
		"tunnel kind 65536":     {frame(TypeTunnelRequest, "a20107021a00010000"), 7},
		"public key of 1 byte":  {frame(TypeTunnelRequest, "a3010702030441aa"), 7},
		"a local port":          {frame(TypeTunnelRequest, "a3010702020346c000020701bb"), 7},
		"prefix of 0 bytes":     {frame(TypeTunnelRequest, "a3010702030581"+"40"), 7},
		"prefix of 33 bits":     {frame(TypeTunnelRequest, "a3010702030581"+"450a00000021"), 7},
		"network of one host":   {frame(TypeTunnelRequest, "a3010702030581"+"450a00000108"), 7},
		"IPv4 prefix, 16 bytes": {frame(TypeTunnelRequest, "a3010702030581"+"5100000000000000000000ffff0a00000068"), 7},
		"network null":          {frame(TypeTunnelRequest, "a3010702030581"+"f6"), 7},
		"network undefined":     {frame(TypeTunnelRequest, "a3010702030581"+"f7"), 7},
		"network of a map":      {frame(TypeTunnelRequest, "a3010702030581"+"a0"), 7},
		"address null":          {frame(TypeTunnelGrant, "a5010702030319ea600444c00002070981"+"f6"), 7},
		"33 networks to avoid":  {frame(TypeTunnelRequest, "a301070203059821"+strings.Repeat("450a00000008", 33)), 0},
		"grant of no kind":      {frame(TypeTunnelGrant, "a4010702000319ea600444c0000207"), 7},
		"tunnel for nobody":     {frame(TypeTunnelGrant, "a3010702020319ea60"), 7},
		"key of 15 bytes":       {frame(TypeTunnelGrant, "a5010702020319ea600444c0000207054f"+strings.Repeat("bb", 15)), 7},
		"9 addresses":           {frame(TypeTunnelGrant, "a5010702030319ea600444c00002070989"+strings.Repeat("450a09000518", 9)), 7},
		"tunnel port 65536":     {frame(TypeTunnelGrant, "a5010702030319ea600444c0000207081a00010000"), 7},
		"incoming, no cookie":   {frame(TypeTunnelRequest, "a401070205061914050781"+"a101191f90"), 7},
		"incoming, port 0":      {frame(TypeTunnelRequest, "a401070205061914050781"+"a20100025818"+strings.Repeat("ee", 24)), 7},
		"incoming, no relay":    {frame(TypeTunnelRequest, "a3010702050781"+"a201191f90025818"+strings.Repeat("ee", 24)), 7},
		"incoming port twice":   {frame(TypeTunnelRequest, "a401070205061914050782"+strings.Repeat("a201191f90025818"+strings.Repeat("ee", 24), 2)), 7},
		"9 incoming ports":      {frame(TypeTunnelGrant, "a5010702050319ea600444c00002070c89"+strings.Repeat("a101191f90", 9)), 7},
		"incoming port absent":  {frame(TypeTunnelGrant, "a5010702050319ea600444c00002070c81"+"a10211"), 7},
		"left nowhere":          {frame(TypeLeft, "a0"), 0},
		"negative id":           {frame(TypePing, "a10120"), 0},
		"a million array items": {frame(TypeHello, "a2010102"+"9a000f4240"), 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			next, err := Append(nil, Pong{ID: 1, Observed: netip.MustParseAddrPort("192.0.2.1:1")})
			if err != nil {
				t.Fatal(err)
			}
			d := NewDecoder(bytes.NewReader(append(test.frame, next...)))
			m, err := d.Next()
			var malformed *MalformedError
			if !errors.As(err, &malformed) {
				t.Fatalf("got %+v, %v", m, err)
			}
			if malformed.ID != test.id {
				t.Errorf("id %d, want %d", malformed.ID, test.id)
			}
			if m, err := d.Next(); err != nil || m.(Pong).ID != 1 {
				t.Errorf("the next message: %+v, %v", m, err)
			}
		})
	}
}

func TestUnknownFieldsAreSkipped(t *testing.T) {
	d := NewDecoder(bytes.NewReader(frame(TypeMapRequest, "a501070246c000020701bb031901bb"+"186363666f6f"+"186482f501")))
	got, err := d.Next()
	want := MapRequest{ID: 7, Server: netip.MustParseAddrPort("192.0.2.7:443"), Proposed: 443}
	if err != nil || got != want {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestBrokenFramesAreFinal(t *testing.T) {
	for name, stream := range map[string][]byte{
		"half a length":    {0},
		"length 0":         {0, 0},
		"too long":         {0x10, 0x01, 1},
		"longest there is": {0xff, 0xff},
		"cut off":          {0, 4, 1, 0xa1},
		"only a length":    {0, 4},
	} {
		if m, err := NewDecoder(bytes.NewReader(stream)).Next(); !errors.Is(err, ErrFraming) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	broken := errors.New("the stream broke")
	for _, head := range [][]byte{nil, {0}, {0, 4, 1}} {
		r := io.MultiReader(bytes.NewReader(head), iotest.ErrReader(broken))
		if _, err := NewDecoder(r).Next(); !errors.Is(err, broken) {
			t.Errorf("after %x: %v", head, err)
		}
	}
}

func TestWhatCannotBeSaid(t *testing.T) {
	good := netip.MustParseAddrPort("192.0.2.7:443")
	for name, m := range map[string]Message{
		"no server":           MapRequest{ID: 1},
		"server without port": MapRequest{ID: 1, Server: netip.AddrPortFrom(good.Addr(), 0)},
		"server with zone":    MapRequest{ID: 1, Server: netip.MustParseAddrPort("[fe80::1%eth0]:443")},
		"grant of port 0":     MapGrant{ID: 1, Client: good.Addr()},
		"grant for nobody":    MapGrant{ID: 1, Port: 1},
		"negative lease":      MapGrant{ID: 1, Port: 1, Client: good.Addr(), Lease: -1},
		"endless retry":       Refusal{ID: 1, Code: Busy, RetryAfter: 1 << 62},
		"left nowhere":        Left{},
		"too many offers":     Hello{Version: 1, Offers: make([]Kind, maxOffers+1)},
		"tunnel of no kind":   TunnelRequest{ID: 1},
		"key of 31 bytes":     TunnelRequest{ID: 1, Kind: WireGuard, PublicKey: make([]byte, 31)},
		"local with zone":     TunnelRequest{ID: 1, Kind: WireGuard, Local: netip.MustParseAddr("fe80::1%eth0")},
		"avoid nothing":       TunnelRequest{ID: 1, Kind: WireGuard, Avoid: make([]netip.Prefix, 1)},
		"avoid too much":      TunnelRequest{ID: 1, Kind: WireGuard, Avoid: slices.Repeat([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, maxAvoid+1)},
		"granted no kind":     TunnelGrant{ID: 1, Client: good.Addr()},
		"tunnel for nobody":   TunnelGrant{ID: 1, Kind: InBand},
		"endless tunnel":      TunnelGrant{ID: 1, Kind: InBand, Client: good.Addr(), Lease: 1 << 62},
		"key of 17 bytes":     TunnelGrant{ID: 1, Kind: InBand, Client: good.Addr(), Key: make([]byte, 17)},
		"too many addresses":  TunnelGrant{ID: 1, Kind: WireGuard, Client: good.Addr(), Addresses: slices.Repeat([]netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}, maxAddresses+1)},
		"IPv4 in IPv6":        TunnelGrant{ID: 1, Kind: WireGuard, Client: good.Addr(), Addresses: []netip.Prefix{netip.MustParsePrefix("::ffff:0:0/96")}},
	} {
		if got, err := Append([]byte("before"), m); err == nil || string(got) != "before" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// An IPv4 address has one encoding, even if it is mapped into IPv6.
	mapped, err := Append(nil, MapRequest{ID: 1, Server: netip.MustParseAddrPort("[::ffff:192.0.2.7]:443")})
	plain, _ := Append(nil, MapRequest{ID: 1, Server: good})
	if err != nil || !bytes.Equal(mapped, plain) {
		t.Errorf("%x, %v; want %x", mapped, err, plain)
	}
}

// An absent value decodes to nil, even if a peer sends an empty one.
func TestEmptyIsAbsent(t *testing.T) {
	for name, test := range map[string]struct {
		frame []byte
		want  Message
	}{
		"offers":  {frame(TypeHello, "a201010280"), Hello{Version: 1}},
		"request": {frame(TypeTunnelRequest, "a5010702030340"+"0440"+"0580"), TunnelRequest{ID: 7, Kind: WireGuard}},
		"grant": {frame(TypeTunnelGrant, "a7010702020319ea600444c0000207"+"0540"+"0740"+"0980"),
			TunnelGrant{ID: 7, Kind: InBand, Lease: time.Minute, Client: netip.MustParseAddr("192.0.2.7")}},
	} {
		got, err := NewDecoder(bytes.NewReader(test.frame)).Next()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(test.want, got, compare, compareAddr, comparePrefix); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestKindsHaveWords(t *testing.T) {
	for k, word := range map[Kind]string{Mapped: "mapped", InBand: "in-band", WireGuard: "wireguard", OpenVPN: "openvpn"} {
		if k.String() != word {
			t.Errorf("kind %d is %q, want %q", uint16(k), k, word)
		}
		if got, ok := ParseKind(word); got != k || !ok {
			t.Errorf("%q is kind %d, %v", word, uint16(got), ok)
		}
	}
	if k, ok := ParseKind("kind 9"); ok || Kind(9).String() != "kind 9" {
		t.Errorf("a kind of the future: %v, %v; %q", k, ok, Kind(9))
	}
}

func TestRefusalIsAnError(t *testing.T) {
	var err error = &Refusal{ID: 3, Code: RateLimited, Message: "2000 a second", RetryAfter: time.Second}
	for _, word := range []string{"rate-limited", "2000 a second", "again later", "1s"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q lacks %q", err, word)
		}
	}
	if !errors.Is(err, &Refusal{Code: RateLimited}) || errors.Is(err, &Refusal{Code: Busy}) {
		t.Error("errors.Is does not go by the code")
	}
	for c := DestinationForbidden; c <= Internal; c++ {
		if strings.HasPrefix(c.String(), "code ") || (&Refusal{Code: c}).Error() == "" {
			t.Errorf("code %d has no name", c)
		}
	}
	says := "203.0.113.1:25 is not forwarded to: port denied; its operator can allow the port"
	if got := (&Refusal{Code: DestinationForbidden, Message: says}).Error(); got != "refused (destination-forbidden): "+says {
		t.Errorf("says it twice: %s", got)
	}
	if got := (&Refusal{Code: 99, Message: "no"}).Error(); got != "refused (code 99): no" {
		t.Errorf("a code of the future: %q", got)
	}
}

func TestForeignTextIsHarmless(t *testing.T) {
	stream, err := Append(nil, Refusal{Code: Busy, Message: "\x1b[2Jgone\n\u202e" + strings.Repeat("é", 1000)})
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewDecoder(bytes.NewReader(stream)).Next()
	if err != nil {
		t.Fatal(err)
	}
	text := m.(Refusal).Message
	if strings.ContainsAny(text, "\x1b\n\u202e") || len(text) > maxText || !strings.Contains(text, "gone") {
		t.Errorf("%q", text)
	}
}

// Spread changes a time by at most a quarter, on average not at all, and differently for each member and time.
func TestSpread(t *testing.T) {
	const left, members = 16 * time.Second, 1000
	until := time.Unix(1e9, 0)
	var sum time.Duration
	var tenths [11]int
	for i := range members {
		name := fmt.Sprint("member", i)
		d := Spread(left, until, name)
		if d < left*3/4 || d > left*5/4 || d != Spread(left, until, name) {
			t.Fatalf("%s waits for %v", name, d)
		}
		sum += d
		tenths[(d-left*3/4)*10/(left/2)]++
	}
	if mean := sum / members; (mean - left).Abs() > left/50 {
		t.Errorf("on average they wait for %v", mean)
	}
	for i, n := range tenths[:10] {
		if n < members/20 || n > members/5 {
			t.Errorf("%d of %d members wait for a time in tenth %d", n, members, i)
		}
	}
	if Spread(left, until, "alice") == Spread(left, until.Add(time.Second), "alice") {
		t.Error("the same member always comes at the same time")
	}
}
