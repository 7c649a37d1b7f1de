package server

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mark = 0x81000005

var (
	key    = cookie.Key{7}
	client = netip.MustParseAddr("127.0.0.1")
	remote = netip.MustParseAddrPort("192.0.2.1:443")
	// program is not at a service's port.
	program = netip.MustParseAddrPort("192.0.2.1:50000")
)

// sealed returns a cookie of the client.
func sealed(k cookie.Key, mark uint32, lasts time.Duration) []byte {
	return k.Seal(cookie.Claim{Mark: mark, Client: client, Expires: time.Now().Add(lasts)})
}

func message(t *testing.T, m rfc8803.Message) []byte {
	t.Helper()
	b, err := m.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// opened returns an opening of a client.
func opened(t *testing.T, f *Front) engine.Opening {
	t.Helper()
	o, err := f.Open(engine.Accepted{Peer: netip.AddrPortFrom(client, 1234)})
	if err != nil {
		t.Fatal(err)
	}
	if s := o.Read(nil); s.Dial != nil || s.Close || s.Reply != nil {
		t.Fatalf("before the client has said anything: %+v", s)
	}
	return o
}

// Each message gets the answer that the RFC has for it, however it arrives.
func TestRefusals(t *testing.T) {
	good := rfc8803.Message{Connect: &rfc8803.Connect{Server: remote}, Cookie: sealed(key, mark, time.Hour)}
	with := func(change func(*rfc8803.Message)) []byte {
		m := good
		connect := *good.Connect
		m.Connect = &connect
		change(&m)
		return message(t, m)
	}
	options := func(b ...byte) []byte { return with(func(m *rfc8803.Message) { m.Connect.Options = b }) }
	to := func(s string) []byte {
		return with(func(m *rfc8803.Message) { m.Connect.Server = netip.MustParseAddrPort(s) })
	}
	withCookie := func(b []byte) []byte { return with(func(m *rfc8803.Message) { m.Cookie = b }) }
	raw := func(s string) []byte {
		b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// The answers to these two repeat the message.
	malformed := &rfc8803.Error{Code: rfc8803.MalformedMessage}
	unsupported := &rfc8803.Error{Code: rfc8803.UnsupportedMessage}
	notAuthorized := &rfc8803.Error{Code: rfc8803.NotAuthorized}
	for name, c := range map[string]struct {
		message []byte
		want    *rfc8803.Error
	}{
		"another version":          {raw("02 01 2263"), &rfc8803.Error{Code: rfc8803.UnsupportedVersion, Value: []byte{1}}},
		"another protocol":         {[]byte("GET / HTTP/1.1\r\n"), malformed},
		"the reserved type":        {raw("01 02 2263  00 01 0000"), unsupported},
		"a TLV beyond the end":     {raw("01 02 2263  16 05 0000"), malformed},
		"two Connect TLVs":         {append(raw("01 0b 2263"), bytes.Repeat(raw("0a 05 01bb 00000000 00000000 0000ffff c0000201"), 2)...), malformed},
		"nothing asked for":        {raw("01 01 2263"), malformed},
		"only a cookie":            {with(func(m *rfc8803.Message) { m.Connect = nil }), malformed},
		"unknown types":            {raw("01 03 2263  28 01 0000 29 01 0000"), unsupported},
		"the longest message":      {append(raw("01 ff 2263  28 fe 0000"), make([]byte, rfc8803.MaxLen-8)...), unsupported},
		"an Error TLV":             {with(func(m *rfc8803.Message) { m.Error = &rfc8803.Error{Code: rfc8803.ConnectionReset} }), malformed},
		"an Extended Header TLV":   {with(func(m *rfc8803.Message) { m.ExtendedHeader = mpCapable }), malformed},
		"a Supported TLV":          {with(func(m *rfc8803.Message) { m.Supported = supported }), malformed},
		"no cookie":                {withCookie(nil), notAuthorized},
		"Info without cookie":      {message(t, rfc8803.Message{Info: true}), notAuthorized},
		"a forged cookie":          {withCookie(sealed(cookie.Key{8}, mark, time.Hour)), notAuthorized},
		"an expired cookie":        {withCookie(sealed(key, mark, -time.Second)), notAuthorized},
		"a cookie without a mark":  {withCookie(sealed(key, 0, time.Hour)), notAuthorized},
		"a short cookie":           {withCookie([]byte("1234")), notAuthorized},
		"an unsupported option":    {options(34, 2, 29, 4, 0, 0, 34, 2), &rfc8803.Error{Code: rfc8803.UnsupportedTCPOption, Value: []byte{34, 29}}},
		"an option beyond the end": {options(30, 8, 0, 0), malformed},
		"an option of length 1":    {options(30, 1, 0, 0), malformed},
		"an option without length": {options(1, 1, 1, 30), malformed},
		"port 0":                   {to("192.0.2.1:0"), malformed},
		"no address":               {to("0.0.0.0:80"), malformed},
		"a multicast address":      {to("[ff02::1]:80"), malformed},
		"a loopback address":       {to("127.1.2.3:80"), malformed},
		"IPv6's loopback address":  {to("[::1]:80"), malformed},
		"the broadcast address":    {to("255.255.255.255:80"), malformed},
		"TCP-AO":                   {options(29, 4, 0, 0), &rfc8803.Error{Code: rfc8803.UnsupportedTCPOption, Value: []byte{29}}},
	} {
		o := opened(t, New(key))
		for n := range len(c.message) {
			if s := o.Read(c.message[:n]); s.Close || s.Dial != nil {
				if n < rfc8803.HeaderLen {
					t.Errorf("%s: answered after %d bytes", name, n)
				}
				break
			}
		}
		o = opened(t, New(key))
		s := o.Read(c.message)
		if !s.Close || s.Dial != nil {
			t.Errorf("%s: %+v", name, s)
			continue
		}
		m, n, err := rfc8803.Decode(s.Reply)
		if err != nil || n != len(s.Reply) {
			t.Errorf("%s: answer %x: %v", name, s.Reply, err)
		}
		if c.want == malformed || c.want == unsupported {
			c.want = rfc8803.Echo(c.want.Code, c.message)
		}
		if diff := cmp.Diff(c.want, m.Error, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// A total length of zero is answered with a reset, not with an error.
func TestNoLength(t *testing.T) {
	_, at := enginetest.Start(t, New(key), true)
	c := enginetest.Dial(t, at, true)
	_, _ = c.Write([]byte{1, 0, 0x22, 0x63, 'd', 'a', 't', 'a'})
	if b, err := io.ReadAll(c); len(b) > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%x, %v", b, err)
	}
}

// What a good message asks for is dialled. The bytes after it are the connection's.
func TestDials(t *testing.T) {
	for name, c := range map[string]struct {
		connect rfc8803.Connect
		learned []bool
		want    engine.Dial
	}{
		"unknown server":        {rfc8803.Connect{Server: remote}, nil, engine.Dial{To: remote, Mark: mark, MPTCP: true}},
		"unknown program":       {rfc8803.Connect{Server: program}, nil, engine.Dial{To: program, Mark: mark, MPTCP: true}},
		"plain server":          {rfc8803.Connect{Server: remote}, []bool{false}, engine.Dial{To: remote, Mark: mark}},
		"server with MPTCP":     {rfc8803.Connect{Server: remote}, []bool{true}, engine.Dial{To: remote, Mark: mark, MPTCP: true}},
		"has become plain":      {rfc8803.Connect{Server: remote}, []bool{true, false}, engine.Dial{To: remote, Mark: mark}},
		"plain, MPTCP demanded": {rfc8803.Connect{Server: remote, Options: []byte{30, 4, 0, 0}}, []bool{false}, engine.Dial{To: remote, Mark: mark, MPTCP: true}},
		"ignored options":       {rfc8803.Connect{Server: remote, Options: []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7, 5, 2, 0, 0}}, []bool{false}, engine.Dial{To: remote, Mark: mark}},
	} {
		f := New(key)
		for _, mptcp := range c.learned {
			o := opened(t, f)
			if s := o.Read(message(t, rfc8803.Message{Connect: &rfc8803.Connect{Server: remote, Options: []byte{30, 4, 0, 0}}, Cookie: sealed(key, mark, time.Hour)})); s.Dial == nil {
				t.Fatalf("%s: %+v", name, s)
			}
			o.Dialled(engine.Result{Connected: true, MPTCP: mptcp, Plain: !mptcp})
		}
		o := opened(t, f)
		header := message(t, rfc8803.Message{Connect: &c.connect, Cookie: sealed(key, mark, time.Hour)})
		for n := range header {
			if s := o.Read(header[:n]); s.Dial != nil || s.Close {
				t.Errorf("%s: %d of %d bytes: %+v", name, n, len(header), s)
			}
		}
		s := o.Read(append(header, "data"...))
		if s.Used != len(header) || s.Reply != nil || s.Dial == nil {
			t.Errorf("%s: %+v", name, s)
			continue
		}
		if d := s.Dial; d.To != c.want.To || d.MPTCP != c.want.MPTCP || d.Mark != c.want.Mark || d.NoFallback != (d.To == remote) {
			t.Errorf("%s: %+v, want %+v", name, d, c.want)
		}
	}
}

// The answer to a connection that was made, or not.
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		info   bool
		result engine.Result
		want   rfc8803.Message
		closes bool
	}{
		"plain":           {false, engine.Result{Plain: true}, rfc8803.Message{ExtendedHeader: []byte{}}, false},
		"MPTCP":           {false, engine.Result{MPTCP: true}, rfc8803.Message{ExtendedHeader: mpCapable}, false},
		"plain, and Info": {true, engine.Result{Plain: true}, rfc8803.Message{ExtendedHeader: []byte{}, Supported: supported}, false},
		"unknown":         {false, engine.Result{}, rfc8803.Message{}, false},
		"refused":         {false, engine.Result{Errno: syscall.ECONNREFUSED}, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.ConnectionReset}}, true},
		"unreachable":     {true, engine.Result{Errno: syscall.EHOSTUNREACH}, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.DestinationUnreachable, Value: []byte{1}}}, true},
		"forbidden":       {false, engine.Result{Errno: syscall.EACCES}, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.DestinationUnreachable, Value: []byte{13}}}, true},
		"timeout":         {false, engine.Result{Errno: syscall.ETIMEDOUT}, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.NetworkFailure}}, true},
		"no descriptors":  {false, engine.Result{Errno: syscall.EMFILE}, rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.ResourceExceeded}}, true},
	} {
		o := opened(t, New(key))
		o.Read(message(t, rfc8803.Message{Info: c.info, Connect: &rfc8803.Connect{Server: remote}, Cookie: sealed(key, mark, time.Hour)}))
		s := o.Dialled(c.result)
		if want := message(t, c.want); !bytes.Equal(s.Reply, want) || s.Close != c.closes || s.Dial != nil {
			t.Errorf("%s: %x, close %v, want %x", name, s.Reply, s.Close, want)
		}
	}
	// A server that is known to be plain is dialled by TCP, and the client learns that it is plain. A client that asks for options
	// is always told about options.
	f := New(key)
	for _, c := range []struct {
		options []byte
		result  engine.Result
	}{
		{nil, engine.Result{Plain: true}},
		{nil, engine.Result{}},
		{[]byte{30, 4, 0, 0}, engine.Result{}},
	} {
		o := opened(t, f)
		o.Read(message(t, rfc8803.Message{Connect: &rfc8803.Connect{Server: remote, Options: c.options}, Cookie: sealed(key, mark, time.Hour)}))
		if got, want := o.Dialled(c.result).Reply, message(t, rfc8803.Message{ExtendedHeader: []byte{}}); !bytes.Equal(got, want) {
			t.Errorf("with the options %x, %+v: %x, want %x", c.options, c.result, got, want)
		}
	}
	s := opened(t, New(key)).Read(message(t, rfc8803.Message{Info: true, Cookie: sealed(key, mark, time.Hour)}))
	if want := message(t, rfc8803.Message{Supported: supported}); !bytes.Equal(s.Reply, want) || !s.Close {
		t.Errorf("Info alone: %+v", s)
	}
}

// The previous key is valid until the next change.
func TestKeyChanges(t *testing.T) {
	f := New(key)
	accepted := func() bool {
		s := opened(t, f).Read(message(t, rfc8803.Message{Connect: &rfc8803.Connect{Server: remote}, Cookie: sealed(key, mark, time.Hour)}))
		return s.Dial != nil
	}
	for i, want := range []bool{true, true, false} {
		if got := accepted(); got != want {
			t.Errorf("after %d changes: accepted %v", i, got)
		}
		f.SetKey(cookie.Key{byte(100 + i)})
	}
}

// A client reaches servers through the engine, over MPTCP, in both address families.
func TestConnections(t *testing.T) {
	_, at := enginetest.Start(t, unmarked{New(key)}, true)
	for _, addr := range []string{"127.0.0.1", "::1"} {
		if addr == "::1" && !hasIPv6(t) {
			continue
		}
		for _, mptcp := range []bool{false, true} {
			to := enginetest.Serve(t, addr, mptcp, enginetest.Echo)
			c := enginetest.Dial(t, at, true)
			_, _ = c.Write(append(message(t, rfc8803.Message{Connect: &rfc8803.Connect{Server: public(to)}, Cookie: sealed(key, mark, time.Hour)}), "data"...))
			_ = c.CloseWrite()
			b, err := io.ReadAll(c)
			if err != nil {
				t.Fatal(err)
			}
			m, n, err := rfc8803.Decode(b)
			if err != nil || string(b[n:]) != "data" {
				t.Errorf("%s, MPTCP %v: %q, %v", addr, mptcp, b, err)
			}
			if want := map[bool][]byte{false: {}, true: mpCapable}[mptcp]; !bytes.Equal(m.ExtendedHeader, want) {
				t.Errorf("%s, MPTCP %v: the server's options %x", addr, mptcp, m.ExtendedHeader)
			}
		}
		c := enginetest.Dial(t, at, true)
		_, _ = c.Write(message(t, rfc8803.Message{Connect: &rfc8803.Connect{Server: public(enginetest.Nobody(t, addr))}, Cookie: sealed(key, mark, time.Hour)}))
		b, _ := io.ReadAll(c)
		if m, _, err := rfc8803.Decode(b); err != nil || m.Error == nil || m.Error.Code != rfc8803.ConnectionReset {
			t.Errorf("%s: nobody listens: %+v, %v", addr, m.Error, err)
		}
	}
}

// The server sees all connections of a client come from one address, even several at a time, and whichever address of the
// converter the client calls.
func TestOneAddress(t *testing.T) {
	_, at := enginetest.StartAt(t, unmarked{New(key)}, enginetest.Listen(t, "0.0.0.0", true))
	const connections = 5
	seen := make(chan net.Addr, connections)
	end := make(chan struct{})
	to := enginetest.Serve(t, "127.0.0.1", false, func(c *net.TCPConn) {
		seen <- c.RemoteAddr()
		<-end
	})
	defer close(end)
	addrs := map[netip.Addr]bool{}
	for n := range connections {
		called := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + n)}), at.Port())
		c := enginetest.DialFrom(t, &net.TCPAddr{IP: client.AsSlice()}, called, true)
		_, _ = c.Write(message(t, rfc8803.Message{Connect: &rfc8803.Connect{Server: public(to)}, Cookie: sealed(key, mark, time.Hour)}))
		addrs[enginetest.AddrPort(<-seen).Addr()] = true
	}
	if len(addrs) != 1 {
		t.Errorf("the server has seen %v", addrs)
	}
}

// hasIPv6 reports whether this host has IPv6 at all.
func hasIPv6(t *testing.T) bool {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Logf("only IPv4 is tested: %v", err)
		return false
	}
	_ = l.Close()
	return true
}

// An Error TLV arrives although the client has sent much more.
func TestErrorArrives(t *testing.T) {
	_, at := enginetest.Start(t, New(key), true)
	c := enginetest.Dial(t, at, true)
	_, _ = c.Write(append(message(t, rfc8803.Message{Connect: &rfc8803.Connect{Server: remote}}), make([]byte, 500_000)...))
	b, err := io.ReadAll(c)
	if m, _, bad := rfc8803.Decode(b); err != nil || bad != nil || m.Error == nil || m.Error.Code != rfc8803.NotAuthorized {
		t.Errorf("%x, %v", b, err)
	}
}

// Thousands of clients that connect and send nothing keep no member out, wherever the member is, and leave nothing behind.
func TestStrangers(t *testing.T) {
	const silent, addresses = 5000, 4
	f := New(key)
	e, at := enginetest.Start(t, unmarked{f}, true)
	to := enginetest.Serve(t, "127.0.0.1", false, enginetest.Echo)
	from := func(n int) *net.TCPAddr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n%addresses))} }
	var held []*net.TCPConn
	for n := range silent {
		held = append(held, enginetest.DialFrom(t, from(n), at, n%2 == 0))
	}
	enginetest.Eventually(t, "all are accepted, and most have ended", func() bool {
		n := e.Counters()
		return n.Accepted == silent && n.Pairs <= addresses*int64(limits.PerSource)
	})
	if n := f.places.Strangers(); n != addresses*limits.PerSource {
		t.Errorf("%d strangers", n)
	}
	for _, member := range []*net.TCPAddr{{IP: net.IPv4(127, 0, 0, 1)}, from(0)} {
		c := enginetest.DialFrom(t, member, at, true)
		_ = c.SetDeadline(time.Now().Add(8 * time.Second)) // less than a silent connection may take
		cookie := key.Seal(cookie.Claim{Mark: mark, Client: enginetest.AddrPort(c.LocalAddr()).Addr(), Expires: time.Now().Add(time.Hour)})
		_, _ = c.Write(append(message(t, rfc8803.Message{Connect: &rfc8803.Connect{Server: public(to)}, Cookie: cookie}), "data"...))
		_ = c.CloseWrite()
		b, err := io.ReadAll(c)
		if _, n, bad := rfc8803.Decode(b); err != nil || bad != nil || string(b[n:]) != "data" {
			t.Errorf("from %v: %q, %v, %v", member, b, bad, err)
		}
	}
	for _, c := range held {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	enginetest.Eventually(t, "no stranger is left", func() bool { return f.places.Strangers() == 0 && e.Counters().Pairs == 0 })
}

// A member may name no server on the loopback interface. Those of the tests are there, and unmarked knows them by
// these addresses.
var published = map[netip.Addr]netip.Addr{
	netip.MustParseAddr("192.0.2.1"):   netip.MustParseAddr("127.0.0.1"),
	netip.MustParseAddr("2001:db8::1"): netip.MustParseAddr("::1"),
}

// public returns the address by which a client names a server of the tests.
func public(server netip.AddrPort) netip.AddrPort {
	for addr, at := range published {
		if at == server.Addr() {
			return netip.AddrPortFrom(addr, server.Port())
		}
	}
	return server
}

// unmarked leaves the mark out, which only root may set, and finds the servers of the tests.
type unmarked struct{ *Front }

func (u unmarked) Open(a engine.Accepted) (engine.Opening, error) {
	o, err := u.Front.Open(a)
	return withoutMark{o}, err
}

type withoutMark struct{ engine.Opening }

func (w withoutMark) Ended() { w.Opening.(engine.Ender).Ended() }

func (w withoutMark) Read(b []byte) engine.Step {
	s := w.Opening.Read(b)
	if s.Dial != nil {
		d := *s.Dial
		d.Mark = 0
		if at, ok := published[d.To.Addr()]; ok {
			d.To = netip.AddrPortFrom(at, d.To.Port())
		}
		s.Dial = &d
	}
	return s
}
