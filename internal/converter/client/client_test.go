package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// asking connects to a relay to which connections are redirected.
type asking struct {
	servers *sync.Map // by the address that a connection comes from
	relay   *engine.Engine
	at      netip.AddrPort
}

func startAsked(t *testing.T, c *Client) *asking {
	t.Helper()
	servers := &sync.Map{}
	front := c.Redirected(func(from netip.AddrPort) (choice.Who, netip.AddrPort, bool) {
		server, ok := servers.LoadAndDelete(from)
		if !ok {
			return choice.Who{}, netip.AddrPort{}, false
		}
		return choice.Who{}, server.(netip.AddrPort), true
	}, nil)
	relay, at := enginetest.StartAt(t, front, enginetest.Listen(t, here, false))
	return &asking{servers, relay, at}
}

func (a *asking) dial(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	return enginetest.DialFrom(t, a.announce(t, to), a.at, false)
}

// announce returns an address from which a connection for the server is expected.
func (a *asking) announce(t *testing.T, to netip.AddrPort) net.Addr {
	t.Helper()
	from := enginetest.Nobody(t, here)
	a.servers.Store(from, to)
	return net.TCPAddrFromAddrPort(from)
}

// Megabytes pass through relay and converter in both directions, to servers of both families. One direction may
// end before the other.
func TestThroughConverter(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	relay := startAsked(t, member(t, choice.Always, convAt))
	var all sync.WaitGroup
	for _, addr := range []string{server4, server6} {
		to := enginetest.Serve(t, addr, false, enginetest.Echo)
		c := relay.dial(t, to)
		all.Go(func() { enginetest.Exchange(t, c, 10<<20) })
	}
	all.Wait()
	if n := conv.Counters(); n.Accepted != 2 || n.Refused != 0 {
		t.Errorf("converter: %+v", n)
	}

	to := enginetest.Serve(t, server4, false, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		_, _ = fmt.Fprintf(c, "%d bytes", len(b))
	})
	c := relay.dial(t, to)
	_, _ = c.Write(make([]byte, 1000))
	_ = c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "1000 bytes" {
		t.Errorf("after the client has closed its direction: %q, %v", b, err)
	}
	enginetest.Eventually(t, "all pairs end", func() bool { return conv.Counters().Pairs+relay.relay.Counters().Pairs == 0 })
}

// A reset from either side becomes one for the other, through both relays.
func TestResets(t *testing.T) {
	needsNamespace(t)
	_, convAt := startConverter(t)
	relay := startAsked(t, member(t, choice.Always, convAt))
	ended := make(chan error, 1)
	byServer := enginetest.Serve(t, server4, false, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	byClient := enginetest.Serve(t, server4, false, func(c *net.TCPConn) {
		b := make([]byte, 1)
		_, _ = c.Read(b)
		_, _ = c.Write(b)
		_, err := c.Read(b)
		ended <- err
	})
	c := relay.dial(t, byServer)
	_, _ = c.Write([]byte("x"))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("by the server: %v, want a reset", err)
	}
	c = relay.dial(t, byClient)
	_, _ = c.Write([]byte("x"))
	_, _ = c.Read(make([]byte, 1))
	_ = c.SetLinger(0)
	_ = c.Close()
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("by the client: %v, want a reset", err)
	}
}

// Servers that turn out to speak MPTCP are reached directly from then on. In auto mode, so are servers about which
// nothing is known yet.
func TestStepsAside(t *testing.T) {
	needsNamespace(t)
	for _, c := range []struct {
		mode  choice.Mode
		mptcp bool
		want  []int64 // connections through the converter, after each
	}{
		{choice.Always, true, []int64{1, 1, 1}},
		{choice.Always, false, []int64{1, 2, 3}},
		{choice.Auto, true, []int64{0, 0, 0}},
		{choice.Auto, false, []int64{0, 1, 2}},
		{choice.Never, false, []int64{0, 0, 0}},
	} {
		conv, convAt := startConverter(t)
		relay := startAsked(t, member(t, c.mode, convAt))
		spoke := make(chan bool, 1)
		to := enginetest.Serve(t, server4, c.mptcp, func(c *net.TCPConn) {
			mptcp, _ := c.MultipathTCP()
			spoke <- mptcp
			enginetest.Echo(c)
		})
		for i, want := range c.want {
			enginetest.Exchange(t, relay.dial(t, to), 1000)
			if got := conv.Counters().Accepted; got != want {
				t.Errorf("mode %d, MPTCP %v: %d connections through the converter after %d, want %d", c.mode, c.mptcp, got, i+1, want)
			}
			if got := <-spoke; got != c.mptcp {
				t.Errorf("mode %d, MPTCP %v: the server was reached with MPTCP %v", c.mode, c.mptcp, got)
			}
		}
	}
}

// A converter that is down, frozen, or refuses the member costs a connection nothing but time, and the next one not
// even that.
func TestConverterFails(t *testing.T) {
	needsNamespace(t)
	_, working := startConverter(t)
	answering := func(reply []byte) func(t *testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort {
			return enginetest.Serve(t, converter, true, func(c *net.TCPConn) {
				_, _ = c.Write(reply)
				_, _ = io.Copy(io.Discard, c)
			})
		}
	}
	refuse := func(code rfc8803.ErrorCode) []byte {
		b, err := rfc8803.Message{Error: &rfc8803.Error{Code: code}}.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, start := range map[string]func(t *testing.T) netip.AddrPort{
		"down": func(t *testing.T) netip.AddrPort { return enginetest.Nobody(t, converter) },
		"frozen": func(t *testing.T) netip.AddrPort {
			return enginetest.AddrPort(enginetest.Listen(t, converter, true).Addr())
		},
		"unreachable":        func(*testing.T) netip.AddrPort { return netip.MustParseAddrPort("198.51.100.1:5124") },
		"no converter":       answering([]byte("220 mail.example.org ESMTP\r\n")),
		"does not authorize": answering(refuse(rfc8803.NotAuthorized)),
		"has no resources":   answering(refuse(rfc8803.ResourceExceeded)),
		"ends the connection": func(t *testing.T) netip.AddrPort {
			return enginetest.Serve(t, converter, true, func(*net.TCPConn) {})
		},
	} {
		for _, others := range [][]netip.AddrPort{nil, {working}} {
			t.Run(fmt.Sprintf("%s, %d others", name, len(others)), func(t *testing.T) {
				bad := start(t)
				c := member(t, choice.Always, append([]netip.AddrPort{bad}, others...)...)
				relay := startAsked(t, c)
				to := enginetest.Serve(t, server4, false, enginetest.Echo)
				enginetest.Exchange(t, relay.dial(t, to), 1000)
				for _, v := range c.Choose(choice.Who{}, to) {
					if v == bad {
						t.Error("it would be tried again at once")
					}
				}
				enginetest.Exchange(t, relay.dial(t, to), 1000)
			})
		}
	}
}

// A converter that did not answer for some servers is left alone only if it does not answer a question about itself either.
func TestSilentConverter(t *testing.T) {
	needsNamespace(t)
	refusal, err := rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.NotAuthorized}}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		start func(t *testing.T) netip.AddrPort
		works bool
	}{
		"works": {func(t *testing.T) netip.AddrPort {
			_, at := startConverter(t)
			return at
		}, true},
		"down": {func(t *testing.T) netip.AddrPort { return enginetest.Nobody(t, converter) }, false},
		"frozen": {func(t *testing.T) netip.AddrPort {
			return enginetest.AddrPort(enginetest.Listen(t, converter, true).Addr())
		}, false},
		"ends the connection": {func(t *testing.T) netip.AddrPort {
			return enginetest.Serve(t, converter, true, func(*net.TCPConn) {})
		}, false},
		"no converter": {func(t *testing.T) netip.AddrPort {
			return enginetest.Serve(t, converter, true, func(c *net.TCPConn) { _, _ = io.WriteString(c, "220 mail.example.org ESMTP\r\n") })
		}, false},
		"does not authorize": {func(t *testing.T) netip.AddrPort {
			return enginetest.Serve(t, converter, true, func(c *net.TCPConn) {
				_, _ = c.Read(make([]byte, rfc8803.MaxLen))
				_, _ = c.Write(refusal)
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			at := c.start(t)
			m := member(t, choice.Always, at)
			asked, ask := make(chan bool, 10), m.ask
			m.ask = func(to netip.AddrPort) (bool, time.Duration) {
				works, wait := ask(to)
				asked <- works
				return works, wait
			}
			for i := range 3 {
				m.Unserved(at, netip.MustParseAddrPort(fmt.Sprintf("203.0.113.%d:80", 200+i)))
			}
			if works := <-asked; works != c.works {
				t.Errorf("works: %v", works)
			}
			other := netip.MustParseAddrPort(server4 + ":80")
			for deadline := time.Now().Add(10 * time.Second); !c.works && len(m.Choose(choice.Who{}, other)) > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("another server is still reached through it")
				}
			}
			if c.works && len(m.Choose(choice.Who{}, other)) == 0 {
				t.Error("another server is not reached through it any more")
			}
			if len(asked) > 0 {
				t.Error("asked more than once")
			}
		})
	}
}

// The program's first bytes are sent right after the message to a converter that has just worked. If the converter then
// ends without an answer, so does the connection, because the server must not get a request twice. If the converter
// reports an error, the server has not got the request, and another way is tried.
func TestEarly(t *testing.T) {
	needsNamespace(t)
	refused, err := rfc8803.Message{Error: rfc8803.ErrorOf(syscall.ECONNREFUSED, netip.MustParseAddr(server4))}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		reply  []byte
		served int64 // requests that reach the server directly
	}{"refuses": {refused, 1}, "ends the connection": {nil, 0}} {
		t.Run(name, func(t *testing.T) {
			heard := make(chan string, 2)
			convAt := enginetest.Serve(t, converter, true, func(conn *net.TCPConn) {
				b := make([]byte, 2*rfc8803.MaxLen)
				n, _ := conn.Read(b)
				_, used, err := rfc8803.Decode(b[:n])
				if err != nil {
					t.Error(err)
				}
				heard <- string(b[used:n])
				_, _ = conn.Write(c.reply)
			})
			var served atomic.Int64
			to := enginetest.Serve(t, server4, false, func(conn *net.TCPConn) {
				served.Add(1)
				enginetest.Echo(conn)
			})
			client := member(t, choice.Always, convAt)
			worked := func() {
				client.Update(func(x *choice.Choice) { x.Carried(convAt, to, time.Millisecond, time.Millisecond, time.Now()) })
			}
			relay := startAsked(t, client)
			for _, trusts := range []bool{true, false} {
				if trusts {
					worked()
				} else {
					client.Update(func(x *choice.Choice) { x.SetConverters(nil); x.SetConverters([]netip.AddrPort{convAt}) })
				}
				before := served.Load()
				goOn := delayed(t, convAt) // until the program has said something
				conn := relay.dial(t, to)
				_, _ = conn.Write([]byte("request"))
				goOn()
				_ = conn.CloseWrite()
				b, err := io.ReadAll(conn)
				want, wantServed := "", int64(1)
				if trusts {
					want, wantServed = "request", c.served
				}
				if got := <-heard; got != want {
					t.Errorf("trusts %v: %q came with the message", trusts, got)
				}
				if n := served.Load() - before; n != wantServed {
					t.Errorf("trusts %v: %d requests reached the server", trusts, n)
				}
				if ok := err == nil && string(b) == "request"; ok != (wantServed == 1) {
					t.Errorf("trusts %v: %q, %v", trusts, b, err)
				}
			}
		})
	}
}

// delayed drops the SYNs to an address until the result is called, so that they are sent again a second later.
func delayed(t *testing.T, to netip.AddrPort) (end func()) {
	t.Helper()
	table := fmt.Sprintf("delayed%d", time.Now().UnixNano())
	nft(t, fmt.Sprintf(`table inet %s {
		chain in { type filter hook input priority 0; ip daddr %s tcp dport %d tcp flags syn drop
		}
	}`, table, to.Addr(), to.Port()), table)
	return func() {
		if out, err := exec.Command("nft", "delete", "table", "inet", table).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// A client without a cookie resets the connection, repeats its request with the cookie that a converter gives, and sends
// it from then on.
func TestGivenCookie(t *testing.T) {
	needsNamespace(t)
	var requests atomic.Int64
	convAt := enginetest.Serve(t, converter, true, func(c *net.TCPConn) {
		requests.Add(1)
		b := make([]byte, 2*rfc8803.MaxLen)
		n, _ := c.Read(b)
		m, used, err := rfc8803.Decode(b[:n])
		early := bytes.Clone(b[used:n])
		answer := rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.MissingCookie, Value: []byte("biscuits\x00\x00\x00\x00")}}
		if err == nil && string(m.Cookie) == "biscuits\x00\x00\x00\x00" {
			answer = rfc8803.Message{ExtendedHeader: []byte{}}
		}
		b, err = answer.Append(nil)
		if err != nil {
			t.Error(err)
		}
		_, _ = c.Write(b)
		if answer.Error == nil {
			_, _ = c.Write(early)
			enginetest.Echo(c)
		} else if _, err := c.Read(b); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after the error: %v, want a reset", err)
		}
	})
	c := New(Config{Policy: choice.Policy{Mode: choice.Always}})
	c.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{convAt}) })
	relay := startAsked(t, c)
	for want := int64(2); want <= 3; want++ {
		enginetest.Exchange(t, relay.dial(t, netip.AddrPortFrom(netip.MustParseAddr(server4), 80)), 1000)
		if n := requests.Load(); n != want {
			t.Errorf("%d requests, want %d", n, want)
		}
	}
}

// A server that does not answer is not a failure of the converter. The program's connection is reset, and goes directly
// if the program tries again.
func TestServerFails(t *testing.T) {
	needsNamespace(t)
	_, convAt := startConverter(t)
	c := member(t, choice.Always, convAt)
	relay := startAsked(t, c)
	to := enginetest.Nobody(t, server4)
	isReset(t, relay.announce(t, to), relay.at)
	if len(c.Choose(choice.Who{}, netip.AddrPortFrom(to.Addr(), 1))) != 1 {
		t.Error("the converter is blamed")
	}
	if len(c.Choose(choice.Who{}, to)) != 0 {
		t.Error("who tries again does not get the server's own error")
	}
}

// A connection that nobody announced is refused, and each announcement is for one connection.
func TestNotAnnounced(t *testing.T) {
	needsNamespace(t)
	relay := startAsked(t, member(t, choice.Never))
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	enginetest.Exchange(t, relay.dial(t, to), 10)
	isReset(t, nil, relay.at)
}

// isReset demands that connections to an address are reset. The reset may come before connect has returned.
func isReset(t *testing.T, from net.Addr, to netip.AddrPort) {
	t.Helper()
	d := net.Dialer{LocalAddr: from}
	c, err := d.DialContext(t.Context(), "tcp", to.String())
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v: %v, want a reset", to, err)
	}
}

// SOCKS5: requests of all kinds of addresses, at once and in pieces, and the reply to each failure.
func TestSOCKS(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	c := member(t, choice.Always, convAt)
	c.config.Resolve = resolve(map[string][]string{
		"server.test": {server4}, "both.test": {"2001:db8::99", server6}, "gone.test": {"2001:db8::99"},
	})
	_, at := enginetest.StartAt(t, c.SOCKS(), enginetest.Listen(t, here, false))
	to4, to6 := enginetest.Serve(t, server4, false, enginetest.Echo), enginetest.Serve(t, server6, false, enginetest.Echo)
	closed := enginetest.Nobody(t, server4).Port()
	name := func(s string) []byte { return append([]byte{3, byte(len(s))}, s...) }
	a4, a6 := netip.MustParseAddr(server4).AsSlice(), netip.MustParseAddr(server6).AsSlice()
	for _, r := range []struct {
		name string
		addr []byte
		port uint16
		want byte
	}{
		{"IPv4", append([]byte{1}, a4...), to4.Port(), 0},
		{"IPv6", append([]byte{4}, a6...), to6.Port(), 0},
		{"name", name("server.test"), to4.Port(), 0},
		{"address as a name", name(server4), to4.Port(), 0},
		{"first address unreachable", name("both.test"), to6.Port(), 0},
		{"all addresses unreachable", name("gone.test"), 80, 3},
		{"no such name", name("nowhere.test"), 80, 4},
		{"refused", append([]byte{1}, a4...), closed, 5},
		{"unreachable", []byte{1, 198, 51, 100, 1}, 80, 3},
		{"no such kind of address", []byte{9, 1, 2, 3, 4}, 80, 8},
	} {
		request := append([]byte{5, 1, 0}, binary.BigEndian.AppendUint16(r.addr, r.port)...)
		for _, pieces := range []bool{false, true} {
			conn := enginetest.Dial(t, at, false)
			all := append([]byte{5, 2, 2, 0}, request...)
			if pieces {
				for _, b := range all {
					_, _ = conn.Write([]byte{b})
					time.Sleep(time.Millisecond)
				}
			} else {
				_, _ = conn.Write(all)
			}
			reply := make([]byte, 12)
			if n, err := io.ReadFull(conn, reply); err != nil || string(reply[:3]) != "\x05\x00\x05" || reply[3] != r.want {
				t.Errorf("%s, in pieces %v: %x, %v, want code %d", r.name, pieces, reply[:n], err, r.want)
				continue
			}
			if r.want == 0 {
				enginetest.Exchange(t, conn, 10<<20)
			} else if b, err := io.ReadAll(conn); len(b) > 0 || err != nil {
				t.Errorf("%s: then %x, %v", r.name, b, err)
			}
		}
	}
	if n := conv.Counters().Accepted; n < 10 {
		t.Errorf("%d connections went through the converter", n)
	}
	for hello, want := range map[string]string{
		"\x04\x01\x00\x50\xcb\x00\x71\x01\x00": "", // SOCKS4
		"\x05\x01\x02":                         "\x05\xff",
		"\x05\x00":                             "\x05\xff",
		"\x05\x01\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00": "\x05\x00\x05\x07\x00\x01\x00\x00\x00\x00\x00\x00", // BIND
		"\x05\x01\x00\x04\x01\x00\x01\x00\x00\x00\x00\x00\x00": "\x05\x00",
	} {
		conn := enginetest.Dial(t, at, false)
		_, _ = conn.Write([]byte(hello))
		if b, err := io.ReadAll(conn); err != nil || string(b) != want {
			t.Errorf("%x: %x, %v, want %x", hello, b, err, want)
		}
	}
}

// A server that the program names is reached directly if its name is excluded, by its address as much as by others.
func TestExcludedName(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	c, _ := excluding(t, convAt)
	c.config.Resolve = resolve(map[string][]string{"www.Example.test": {server4}, "example.test.": {server4}, "notexample.test": {server4}})
	_, at := enginetest.StartAt(t, c.SOCKS(), enginetest.Listen(t, here, false))
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	for _, x := range []struct {
		name     string
		accepted int64 // by the converter, ever
	}{{"www.Example.test", 0}, {"example.test.", 0}, {"notexample.test", 1}, {"www.Example.test", 1}} {
		conn := enginetest.Dial(t, at, false)
		request := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(x.name))}, x.name...)
		_, _ = conn.Write(binary.BigEndian.AppendUint16(request, to.Port()))
		reply := make([]byte, 12)
		if _, err := io.ReadFull(conn, reply); err != nil || reply[3] != 0 {
			t.Fatalf("%s: %x, %v", x.name, reply, err)
		}
		enginetest.Exchange(t, conn, 1000)
		if n := conv.Counters().Accepted; n != x.accepted {
			t.Errorf("after %s: the converter got %d connections, want %d", x.name, n, x.accepted)
		}
	}
}

// excluding returns a member for whose servers below example.test no converter is used, and a channel that tells when
// such a name was heard.
func excluding(t *testing.T, convAt netip.AddrPort) (c *Client, told chan struct{}) {
	t.Helper()
	c, told = member(t, choice.Always, convAt), make(chan struct{}, 10)
	c.Update(func(x *choice.Choice) {
		x.SetPolicy(choice.Policy{Mode: choice.Always, ExcludeDomains: []string{"example.test"}})
	})
	c.config.Excluded = func() { told <- struct{}{} }
	return c, told
}

// After an excluded name in a TLS ClientHello, which may come in any pieces, the next connections to the address go
// directly. Other names change nothing, and neither do bytes that are not TLS.
func TestNameSeenLater(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	c, told := excluding(t, convAt)
	relay := startAsked(t, c)
	for _, x := range []struct {
		what, addr string
		says       []byte
		piece      int // bytes at a time; 0: all
		converted  bool
	}{
		{"another name", server4, clientHello(t, "notexample.test"), 0, true},
		{"no TLS", server4, []byte("GET / HTTP/1.1\r\nHost: example.test\r\n\r\n"), 0, true},
		{"the name", server4, clientHello(t, "www.Example.test"), 0, true},
		{"the next connection", server4, []byte("anything"), 0, false},
		{"the name in pieces", server6, clientHello(t, "example.test"), 100, true},
		{"the next connection after that", server6, []byte("anything"), 0, false},
	} {
		heard := make(chan []byte, 1)
		to := enginetest.Serve(t, x.addr, false, func(c *net.TCPConn) {
			b := make([]byte, len(x.says))
			_, _ = io.ReadFull(c, b)
			_, _ = c.Write(b[:1])
			heard <- b
		})
		before := conv.Counters().Accepted
		conn := relay.dial(t, to)
		for rest := x.says; len(rest) > 0; {
			n := len(rest)
			if x.piece > 0 {
				n = min(n, x.piece)
			}
			if _, err := conn.Write(rest[:n]); err != nil {
				t.Fatalf("%s: %v", x.what, err)
			}
			rest = rest[n:]
		}
		if b := <-heard; !bytes.Equal(b, x.says) {
			t.Errorf("%s: the server has got other bytes", x.what)
		}
		if converted := conv.Counters().Accepted > before; converted != x.converted {
			t.Errorf("%s: converted: %t, want %t", x.what, converted, x.converted)
		}
		if strings.HasPrefix(x.what, "the name") {
			<-told // the server may get the bytes first
		}
		conn.Close()
	}
	if len(told) != 0 {
		t.Errorf("%d exclusions too many", len(told))
	}
}

// The same holds for a program that gives an address to the proxy, by SOCKS or HTTP.
func TestNameSeenLaterByProxy(t *testing.T) {
	needsNamespace(t)
	_, convAt := startConverter(t)
	c, told := excluding(t, convAt)
	_, at := enginetest.StartAt(t, c.Proxy(), enginetest.Listen(t, here, false))
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	addr := netip.MustParseAddr(server4).AsSlice()
	for name, x := range map[string]struct {
		request []byte
		reply   int
	}{
		"SOCKS": {binary.BigEndian.AppendUint16(append([]byte{5, 1, 0, 5, 1, 0, 1}, addr...), to.Port()), 12},
		"HTTP":  {fmt.Appendf(nil, "CONNECT %v HTTP/1.1\r\nHost: %v\r\n\r\n", to, to), len("HTTP/1.1 200 Connection established\r\n\r\n")},
	} {
		conn := enginetest.Dial(t, at, false)
		_, _ = conn.Write(x.request)
		if _, err := io.ReadFull(conn, make([]byte, x.reply)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, _ = conn.Write(clientHello(t, "example.test"))
		select {
		case <-told:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: the name was not heard", name)
		}
		conn.Close()
		c.Update(func(x *choice.Choice) {
			x.SetPolicy(choice.Policy{Mode: choice.Always}) // forgets it
			x.SetPolicy(choice.Policy{Mode: choice.Always, ExcludeDomains: []string{"example.test"}})
		})
	}
}

// clientHello returns the ClientHello of a TLS client.
func clientHello(t *testing.T, name string) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() { _ = tls.Client(theirs, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake() }()
	defer ours.Close()
	b := make([]byte, 16<<10)
	n, err := ours.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// resolve returns a resolver that knows some names.
func resolve(names map[string][]string) func(context.Context, string) ([]netip.Addr, error) {
	return func(_ context.Context, host string) (addrs []netip.Addr, err error) {
		for _, s := range names[host] {
			addrs = append(addrs, netip.MustParseAddr(s))
		}
		if addrs == nil {
			err = &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		return addrs, err
	}
}

// While many names are being resolved, further ones are refused at once.
func TestManyNames(t *testing.T) {
	needsNamespace(t)
	c := member(t, choice.Never)
	proceed := make(chan struct{})
	var asked atomic.Int64
	c.config.Resolve = func(context.Context, string) ([]netip.Addr, error) {
		asked.Add(1)
		<-proceed
		return []netip.Addr{netip.MustParseAddr(server4)}, nil
	}
	_, at := enginetest.StartAt(t, c.CONNECT(), enginetest.Listen(t, here, false))
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	ask := func() *net.TCPConn {
		conn := enginetest.Dial(t, at, false)
		_, _ = fmt.Fprintf(conn, "CONNECT name:%d HTTP/1.1\r\n\r\n", to.Port())
		return conn
	}
	var waiting []*net.TCPConn
	for range resolvingMost {
		waiting = append(waiting, ask())
	}
	enginetest.Eventually(t, "all are being resolved", func() bool { return asked.Load() == resolvingMost })
	status(t, ask(), http.StatusServiceUnavailable)
	close(proceed)
	for _, conn := range waiting {
		status(t, conn, http.StatusOK)
	}
	status(t, ask(), http.StatusOK)
}

// status reads the answer to a CONNECT, and returns its text if it is an error.
func status(t *testing.T, conn *net.TCPConn, want int) string {
	t.Helper()
	r, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Error(err)
		return ""
	}
	defer r.Body.Close()
	if r.StatusCode != want {
		t.Errorf("%s, want %d", r.Status, want)
	}
	if r.StatusCode == http.StatusOK {
		return ""
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// HTTP CONNECT: what works, and the answer to what does not.
func TestCONNECT(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	c := member(t, choice.Always, convAt)
	c.config.Resolve = resolve(map[string][]string{"server.test": {server4}})
	_, at := enginetest.StartAt(t, c.CONNECT(), enginetest.Listen(t, here, false))
	to4, to6 := enginetest.Serve(t, server4, false, enginetest.Echo), enginetest.Serve(t, server6, false, enginetest.Echo)
	for _, r := range []struct {
		request string
		want    int
	}{
		{fmt.Sprintf("CONNECT server.test:%d HTTP/1.1\r\nHost: server.test\r\nProxy-Connection: keep-alive\r\n", to4.Port()), 200},
		{fmt.Sprintf("CONNECT %v HTTP/1.0\r\n", to6), 200},
		{fmt.Sprintf("CONNECT %v HTTP/1.1\r\n", enginetest.Nobody(t, server4)), 502},
		{"CONNECT nowhere.test:443 HTTP/1.1\r\n", 502},
		{"CONNECT server.test HTTP/1.1\r\n", 400},
		{"CONNECT server.test:0 HTTP/1.1\r\n", 400},
		{"CONNECT server.test:http HTTP/1.1\r\n", 400},
		{"nonsense\r\n", 400},
		{"GET http://server.test/ HTTP/1.1\r\nHost: server.test\r\n", 405},
	} {
		conn := enginetest.Dial(t, at, false)
		_, _ = conn.Write([]byte(r.request + "\r\n"))
		text := status(t, conn, r.want)
		if r.want == 200 {
			enginetest.Exchange(t, conn, 10<<20)
		} else if !strings.HasSuffix(text, ".\n") {
			t.Errorf("%q is answered with %q", r.request, text)
		}
	}
	if n := conv.Counters().Accepted; n != 3 {
		t.Errorf("%d connections went through the converter", n)
	}
}

// A program that speaks neither SOCKS5 nor HTTP is refused at its first byte, without waiting for a time limit.
func TestProxyRefuses(t *testing.T) {
	for name, c := range map[string]struct{ said, want string }{
		"SOCKS4": {"\x04\x01\x00\x50\xcb\x00\x71\x01\x00", "\x00\x5b\x00\x00\x00\x00\x00\x00"},
		"TLS":    {"\x16\x03\x01\x00\xc8\x01\x00", ""},
		"zeros":  {"\x00\x00\x00", ""},
	} {
		t.Run(name, func(t *testing.T) {
			opening, err := New(Config{}).Proxy().Open(engine.Accepted{})
			if err != nil {
				t.Fatal(err)
			}
			if s := opening.Read([]byte(c.said)); !s.Close || string(s.Reply) != c.want {
				t.Errorf("%+v, want an end after %q", s, c.want)
			}
		})
	}
}

// A program on another host does not reach this one through the proxy, by whatever notation of its addresses.
func TestProxyHidesItsHost(t *testing.T) {
	var own []netip.Addr
	for _, a := range []string{"127.0.0.1", "192.168.1.1", "fe80::1", "2001:db8::1"} {
		own = append(own, netip.MustParseAddr(a))
	}
	for to, want := range map[string]bool{
		"203.0.113.1": true, "2001:db8::2": true, "192.168.1.2": true,
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "::ffff:127.0.0.1": false, "0.0.0.0": false, "::": false,
		"192.168.1.1": false, "::ffff:192.168.1.1": false, "2001:db8::1": false, "169.254.169.254": false, "fe80::1%eth0": false,
	} {
		addrs := []netip.Addr{netip.MustParseAddr(to)}
		for peer, isOwn := range map[string]bool{"192.168.1.7": false, "2001:db8::7": false, "192.168.1.1": true, "::ffff:192.168.1.1": true} {
			if got := len(forOthers(netip.MustParseAddr(peer), addrs, own)) == 1; got != (want || isOwn) {
				t.Errorf("%s reaches %s: %v", peer, to, got)
			}
		}
	}
}

// What the waypoint's rules refuse to a member's mark, the program reaches directly.
func TestRulesRefuse(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	c := member(t, choice.Always, convAt)
	_, at := enginetest.StartAt(t, c.CONNECT(), enginetest.Listen(t, here, false))
	to := enginetest.Serve(t, server4, false, enginetest.Echo)
	for i, with := range []string{"tcp reset", "icmpx admin-prohibited"} {
		table := fmt.Sprintf("refuse%d", i)
		nft(t, fmt.Sprintf(`table inet %s {
			chain out { type filter hook output priority %d;
				meta mark %d ip daddr %s tcp dport %d reject with %s
			}
		}`, table, -i, memberMark, server4, to.Port(), with), table)
		conn := enginetest.Dial(t, at, false)
		_, _ = fmt.Fprintf(conn, "CONNECT %v HTTP/1.1\r\n\r\n", to)
		status(t, conn, http.StatusOK)
		enginetest.Exchange(t, conn, 1<<20)
	}
	enginetest.Eventually(t, "the converter has refused both", func() bool { return conv.Counters().Pairs == 0 })
	if n := conv.Counters(); n.Accepted != 2 || n.Refused != 2 {
		t.Errorf("converter: %+v", n)
	}
}

// nft loads a table, and removes it when the test ends.
func nft(t *testing.T, rules, table string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if errors.Is(cmd.Err, exec.ErrNotFound) {
		t.Skip("needs nft, of Debian's package nftables")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("nft", "delete", "table", "inet", table).Run() })
}

// TPROXY's connections are taken to the servers that they called. The relay's own have a mark and pass by.
func TestTransparent(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	c := member(t, choice.Always, convAt)
	c.config.Mark = 7
	for _, addr := range []string{server4, server6} {
		family := map[string]string{server4: "ip", server6: "ip6"}[addr]
		l := transparentListener(t, addr)
		_, at := enginetest.StartAt(t, c.Transparent(enginetest.AddrPort(l.Addr()).Port(), 0), l)
		to, closed := enginetest.Serve(t, addr, false, enginetest.Echo), enginetest.Nobody(t, addr)
		table := "take_" + family
		nft(t, fmt.Sprintf(`table inet %s {
			chain pre { type filter hook prerouting priority mangle;
				%s daddr %s tcp dport { %d, %d } meta mark { 0x7, %#x } accept
				%s daddr %s tcp dport { %d, %d } tproxy %s to %v
			}
		}`, table, family, addr, to.Port(), closed.Port(), memberMark, family, addr, to.Port(), closed.Port(), family, at), table)
		before := conv.Counters().Accepted
		enginetest.Exchange(t, enginetest.Dial(t, to, false), 10<<20)
		isReset(t, nil, closed)
		if n := conv.Counters().Accepted - before; n != 2 {
			t.Errorf("%s: %d connections went through the converter", addr, n)
		}
		isReset(t, nil, at) // because nobody redirected it
	}
}

func transparentListener(t *testing.T, addr string) *net.TCPListener {
	t.Helper()
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		_ = raw.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1); err != nil {
				err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
			}
		})
		return err
	}}
	l, err := c.Listen(t.Context(), "tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}
