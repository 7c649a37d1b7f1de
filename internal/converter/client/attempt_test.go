package client

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/known"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// TestWaysOfAnAttempt has any ways fail in any manner. Each converter is tried at most twice for an address, the
// direct way once, after a converter has failed to reach the server at the latest. An attempt that ends without a
// connection has the errno of the direct way.
func TestWaysOfAnAttempt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New(Config{Policy: choice.Policy{Mode: choice.Always}})
		c.ask = func(netip.AddrPort) (bool, time.Duration) { return true, 0 }
		var converters, servers []netip.AddrPort
		for i := range rapid.IntRange(0, 3).Draw(t, "converters") {
			converters = append(converters, netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:5124", i+1)))
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "servers") {
			servers = append(servers, netip.MustParseAddrPort(fmt.Sprintf("203.0.113.%d:443", i+1)))
		}
		c.Update(func(c *choice.Choice) { c.SetConverters(converters) })
		failures := []syscall.Errno{syscall.ECONNREFUSED, syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.ECONNRESET, syscall.EMFILE}
		a, dial := c.begin(choice.Who{}, servers...)
		for dials, direct := 1, 0; ; dials++ {
			if dials > len(servers)*(2*len(converters)+1) {
				t.Fatalf("%d dials for %d servers and %d converters", dials, len(servers), len(converters))
			}
			var r engine.Result
			via := dial.Await != nil
			if via != slices.Contains(converters, dial.To) || !via && !slices.Contains(servers, dial.To) || !dial.MPTCP || !dial.NoFallback {
				t.Fatalf("%+v", dial)
			}
			if via && dial.Timeout != converterTimeout {
				t.Fatalf("a converter may take %v", dial.Timeout)
			}
			server := a.servers[0]
			r.Errno = rapid.SampledFrom(append(failures, 0)).Draw(t, "errno")
			r.Connected = r.Errno == 0 || via && rapid.Bool().Draw(t, "connected")
			answered := false
			if via && r.Connected && r.Errno != syscall.ETIMEDOUT {
				answered = rapid.Bool().Draw(t, "answers") || r.Errno == 0
			}
			final := false // the converter says that the server cannot be reached
			if answered {
				m := rfc8803.Message{ExtendedHeader: []byte{}}
				if r.Errno != 0 {
					code := rapid.SampledFrom([]rfc8803.ErrorCode{0, 1, 2, 3, 32, 33, 64, 65, 96, 97}).Draw(t, "code")
					m = rfc8803.Message{Error: &rfc8803.Error{Code: code, Value: []byte{1, 2, 3}}}
					final = m.Error.ConcernsServer()
				}
				b, err := m.Append(nil)
				if err != nil {
					t.Fatal(err)
				}
				_, done, errno := dial.Await(b)
				if done != (r.Errno == 0) || done == (errno != 0) {
					t.Fatalf("%+v: %v, %v", m, done, errno)
				}
				if errno != 0 {
					r.Errno = errno
				}
			}
			next, errno := a.dialled(r)
			if !via {
				direct++
			}
			switch {
			case r.Errno == 0:
				if next != nil || errno != 0 {
					t.Fatalf("connected, then %+v, %v", next, errno)
				}
				return
			case via && (next == nil || a.servers[0] != server):
				t.Fatalf("a failed converter ends the attempt for %v: %v", server, errno)
			case via && r.Errno == syscall.ETIMEDOUT && next.Await != nil:
				t.Fatalf("another converter may take its time after a timeout")
			case final && next.Await != nil:
				t.Fatalf("%v is not tried directly", server)
			case !via && len(a.servers) > 0 && a.servers[0] == server:
				t.Fatalf("%v is tried again", server)
			case next == nil && (errno == 0 || len(a.servers) > 0):
				t.Fatalf("no connection, and errno %v with %d servers left", errno, len(a.servers))
			case direct > len(servers):
				t.Fatalf("%d direct dials for %d servers", direct, len(servers))
			}
			if next == nil {
				return
			}
			dial = next
		}
	})
}

// After the direct way has failed, too, connections to the server go directly, where programs get its own error. The same
// holds if the program gives up before the server has answered.
func TestUnreachedServer(t *testing.T) {
	bob, server := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("203.0.113.1:443")
	silent := engine.Result{Errno: syscall.ETIMEDOUT, Connected: true}
	for name, c := range map[string]struct {
		results []engine.Result // of the converter, and then of the server
		want    bool            // it goes directly then
	}{
		"refuses":                      {[]engine.Result{silent, {Errno: syscall.ECONNREFUSED}}, true},
		"is unreachable":               {[]engine.Result{silent, {Errno: syscall.EHOSTUNREACH}}, true},
		"does not answer":              {[]engine.Result{silent, {Errno: syscall.ETIMEDOUT}}, true},
		"this host lacks descriptors":  {[]engine.Result{silent, {Errno: syscall.EMFILE}}, false},
		"the program gives up":         {[]engine.Result{silent}, true},
		"the program gives up at once": {nil, false},
		"the converter reaches it":     {[]engine.Result{{}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := New(Config{Policy: choice.Policy{Mode: choice.Always}})
			client.ask = func(netip.AddrPort) (bool, time.Duration) { return true, 0 }
			client.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{bob}) })
			o := open(client, choice.Who{}, server)
			for _, r := range c.results {
				o.Dialled(r)
			}
			o.Ended()
			if got := len(client.Choose(choice.Who{}, server)) == 0; got != c.want {
				t.Errorf("goes directly: %v", got)
			}
		})
	}
}

// A server that does not answer a converter that works is soon given up, because its program cannot. Otherwise the kernel
// decides how long a direct connection may take.
func TestSilentServer(t *testing.T) {
	bob, server := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("203.0.113.1:443")
	for name, c := range map[string]struct {
		result engine.Result
		want   time.Duration
	}{
		"the server is silent":    {engine.Result{Errno: syscall.ETIMEDOUT, Connected: true}, silentTimeout},
		"the converter is silent": {engine.Result{Errno: syscall.ETIMEDOUT}, 0},
	} {
		client := New(Config{Policy: choice.Policy{Mode: choice.Always}})
		client.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{bob}) })
		s := open(client, choice.Who{}, server).Dialled(c.result)
		if s.Dial == nil || s.Dial.To != server || s.Dial.Timeout != c.want {
			t.Errorf("%s: %+v", name, s.Dial)
		}
	}
}

// A converter that does not serve a connection to one server is still used for others. It is left alone only if it
// answers so to a question, or states a time for which it wants to be left alone.
func TestConverterRefusesOneServer(t *testing.T) {
	bob, server, other := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("203.0.113.1:443"), netip.MustParseAddrPort("203.0.113.2:443")
	refuses := func(code rfc8803.ErrorCode, value ...byte) []byte {
		b, err := rfc8803.Message{Error: &rfc8803.Error{Code: code, Value: value}}.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, c := range map[string]struct {
		answer []byte
		errno  syscall.Errno // how the connection to the converter ends
		wants  bool          // the converter says for how long it wants to be left alone
	}{
		"has no port for it":       {answer: refuses(rfc8803.ResourceExceeded), errno: syscall.EPROTO},
		"has no resources for 10s": {answer: refuses(rfc8803.ResourceExceeded, 10), errno: syscall.EPROTO, wants: true},
		"does not like its port":   {answer: refuses(rfc8803.MalformedMessage), errno: syscall.EPROTO},
		"does not authorize it":    {answer: refuses(rfc8803.NotAuthorized), errno: syscall.EPROTO},
		"answers nonsense":         {answer: []byte("220 mail.example.org ESMTP\r\n"), errno: syscall.EPROTO},
		"resets the connection":    {errno: syscall.ECONNRESET},
	} {
		for _, works := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, works %t", name, works), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					asked := 0
					client := New(Config{Policy: choice.Policy{Mode: choice.Always}})
					client.ask = func(netip.AddrPort) (bool, time.Duration) { asked++; return works, 0 }
					client.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{bob}) })
					for range 3 {
						a, dial := client.begin(choice.Who{}, server)
						if dial.Await == nil {
							break // it is not asked for this server again
						}
						dial.Await(c.answer)
						if next, _ := a.dialled(engine.Result{Errno: c.errno, Connected: true}); next == nil || next.To != server {
							t.Fatalf("then %+v", next)
						}
					}
					synctest.Wait()
					if len(client.Choose(choice.Who{}, server)) > 0 {
						t.Error("it is asked for this server again")
					}
					if got, want := len(client.Choose(choice.Who{}, other)) > 0, works && !c.wants; got != want {
						t.Errorf("it is asked for another server: %t, want %t", got, want)
					}
					if asked > 1 {
						t.Errorf("%d questions", asked)
					}
				})
			})
		}
	}
}

// A converter that refuses one server after the other is left alone, though it answers questions.
func TestConverterRefusesServers(t *testing.T) {
	refusal, err := rfc8803.Message{Error: &rfc8803.Error{Code: rfc8803.ResourceExceeded}}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	bob := netip.MustParseAddrPort("192.0.2.1:5124")
	client := New(Config{Policy: choice.Policy{Mode: choice.Always}})
	client.ask = func(netip.AddrPort) (bool, time.Duration) { return true, 0 }
	client.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{bob}) })
	refused := 0
	for i := range 100 {
		a, dial := client.begin(choice.Who{}, netip.MustParseAddrPort(fmt.Sprintf("203.0.113.%d:443", i)))
		if dial.Await == nil {
			continue
		}
		refused++
		dial.Await(refusal)
		a.dialled(engine.Result{Errno: syscall.EPROTO, Connected: true})
	}
	if refused > 10 || !client.Aside()[bob].Refuses {
		t.Errorf("%d servers waited for a refusal, and then aside were %v", refused, client.Aside())
	}
}

// A converter that says to have reached servers, which then say nothing, is left alone.
func TestConverterReachesNoServer(t *testing.T) {
	bob := netip.MustParseAddrPort("192.0.2.1:5124")
	client := New(Config{Policy: choice.Policy{Mode: choice.Always}})
	client.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{bob}) })
	fronts := map[string]func(server netip.AddrPort) (engine.Opening, *engine.Dial){
		"redirected": func(server netip.AddrPort) (engine.Opening, *engine.Dial) {
			o := open(client, choice.Who{}, server)
			return o, o.first
		},
		"proxy": func(server netip.AddrPort) (engine.Opening, *engine.Dial) {
			o := &named{client: client, reply: func(syscall.Errno) []byte { return nil }}
			first := o.begin(client.begin, []netip.Addr{server.Addr()}, server.Port())
			return &proxy{client: client, Opening: &socks{named: *o}}, first
		},
	}
	last := byte(0)
	for name, begin := range fronts {
		client.Update(func(c *choice.Choice) {
			c.Carried(bob, netip.AddrPort{}, 1, 1, time.Now())
			c.Account(choice.Who{}, time.Now()).Spoke(bob)
		})
		asked := 0
		for range 20 {
			last++
			o, dial := begin(netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, last}), 443))
			o.Dialled(engine.Result{Connected: true, MPTCP: true})
			if dial.To == bob {
				asked++
			}
			o.(engine.Witness).Spoke(false)
		}
		if asked > 10 || !client.Aside()[bob].Refuses {
			t.Errorf("%s: it was asked for %d servers, and then aside were %v", name, asked, client.Aside())
		}
		client.Update(func(c *choice.Choice) { c.Carried(bob, netip.AddrPort{}, 1, 1, time.Now()) })
	}
}

// A host of the LAN cannot make servers end its connections in such a way that others no longer use the converter. Neither
// can a host that uses the proxy, or a user of this host.
func TestSilenceOfOneClient(t *testing.T) {
	bob, phone := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddr("10.0.0.9")
	server := netip.MustParseAddrPort("203.0.113.1:443")
	for name, begin := range map[string]func(*Client, netip.AddrPort) (engine.Opening, choice.Who){
		"gateway": func(c *Client, server netip.AddrPort) (engine.Opening, choice.Who) {
			who := choice.Who{Host: phone}
			return open(c, who, server), who
		},
		"proxy": func(c *Client, server netip.AddrPort) (engine.Opening, choice.Who) {
			o := &named{client: c, peer: phone, reply: func(syscall.Errno) []byte { return nil }}
			o.begin(c.begin, []netip.Addr{server.Addr()}, server.Port())
			return &proxy{client: c, Opening: &socks{named: *o}}, choice.Who{Host: phone}
		},
		"dcol run": func(c *Client, server netip.AddrPort) (engine.Opening, choice.Who) {
			who := choice.Who{User: 1000}
			return open(c, who, server), who
		},
	} {
		client := New(Config{Policy: choice.Policy{Mode: choice.Always}})
		client.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{bob}) })
		var who choice.Who
		for last := range byte(20) {
			var o engine.Opening
			o, who = begin(client, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, last}), 443))
			o.Dialled(engine.Result{Connected: true, MPTCP: true})
			o.(engine.Witness).Spoke(false)
		}
		if len(client.Choose(who, server)) > 0 {
			t.Errorf("%s: this client still uses the converter", name)
		}
		for _, other := range []choice.Who{{}, {Host: netip.MustParseAddr("10.0.0.8")}, {User: 1001}} {
			if len(client.Choose(other, server)) == 0 {
				t.Errorf("%s: %+v does not use the converter any more", name, other)
			}
		}
		if aside := client.Aside(); len(aside) > 0 {
			t.Errorf("%s: aside are %v", name, aside)
		}
	}
}

// A converter is called from its configured address, by a socket with the mark. Converters that must not be called now
// are skipped.
func TestWaysToConverters(t *testing.T) {
	bob, carol, server := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("192.0.2.2:5124"), netip.MustParseAddrPort("203.0.113.1:443")
	inside := netip.MustParseAddr("10.192.0.2")
	c := New(Config{Policy: choice.Policy{Mode: choice.Always}, Way: func(converter netip.AddrPort) (Way, bool) {
		return Way{Local: inside, Mark: 2}, converter == carol
	}})
	c.Update(func(c *choice.Choice) { c.SetConverters([]netip.AddrPort{bob, carol}) })
	a, dial := c.begin(choice.Who{}, server)
	if dial.To != carol || dial.Local != inside || dial.Mark != 2 {
		t.Errorf("the first dial is %+v", dial)
	}
	dial, _ = a.dialled(engine.Result{Errno: syscall.EADDRNOTAVAIL})
	if dial == nil || dial.To != server || dial.Local.IsValid() || dial.Mark != 0 {
		t.Errorf("then the dial is %+v, want the server directly", dial)
	}
}

// A server that is known to speak no MPTCP is dialled by TCP, until that is forgotten: a connection by TCP teaches nothing.
func TestPlainServerIsDialledByTCP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, server := New(Config{}), netip.MustParseAddrPort("203.0.113.1:443")
		for i := range 3 {
			a, dial := c.beginDirectly(choice.Who{}, server)
			if want := i != 1; dial.MPTCP != want {
				t.Errorf("connection %d: MPTCP %v, want %v", i+1, dial.MPTCP, want)
			}
			if next, errno := a.dialled(engine.Result{Plain: dial.MPTCP}); next != nil || errno != 0 {
				t.Fatalf("connected, and then %+v, %v", next, errno)
			}
			if i == 1 {
				time.Sleep(known.PlainFor)
			} else {
				time.Sleep(known.PlainFor / 2)
			}
		}
	})
}

// A program that may listen for one connection only gets one, although that may fall back to TCP.
func TestProgramGetsOneConnection(t *testing.T) {
	for port, want := range map[uint16]bool{21: true, 1023: true, 1024: false, 50000: false} {
		server := netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), port)
		if _, dial := New(Config{}).beginDirectly(choice.Who{}, server); dial.NoFallback != want {
			t.Errorf("%v: %+v", server, dial)
		}
	}
}
