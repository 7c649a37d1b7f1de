package relay

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Programs learn which servers speak no MPTCP from what the agent has found, while there is no converter for them.
func TestPlainServersAreTold(t *testing.T) {
	t.Parallel()
	plain, other := netip.MustParseAddrPort("203.0.113.1:80"), netip.MustParseAddrPort("[2001:db8::1]:80")
	use := Use{Mode: choice.Auto, Plain: []PlainServer{{Server: plain, Found: time.Now()}}}
	dir := t.TempDir()
	r, _ := started(t, netnstest.New(t), dir, "1")
	set := func() {
		t.Helper()
		if _, err := r.Set(State{Use: &use}); err != nil {
			t.Fatal(err)
		}
	}
	set()
	c := ask.NewClient(filepath.Join(dir, ask.SocketName), ask.Timeout)
	t.Cleanup(c.Close)
	if a := c.Ask(plain); a.Convert != nil || !a.Plain {
		t.Errorf("a server without MPTCP, and no converter: %+v", a)
	}
	if a := c.Ask(other); a.Convert != nil || a.Plain {
		t.Errorf("a server of which nothing is known: %+v", a)
	}
	use.Converters = []Converter{{Name: "bob", At: netip.MustParseAddrPort("192.0.2.1:5124"), Cookie: []byte("cookie")}}
	set()
	if a := c.Ask(plain); a.Convert == nil || a.Plain {
		t.Errorf("a server without MPTCP, and a converter: %+v", a)
	}
	// A converter's later finding counts more than an old one of a connection.
	c.Learned(plain, true)
	set()
	if a := c.Ask(plain); a.Convert != nil || a.Plain {
		t.Errorf("a server that speaks MPTCP now: %+v", a)
	}
	use.Plain[0].Found = time.Now()
	c2 := ask.NewClient(filepath.Join(dir, ask.SocketName), ask.Timeout) // which remembers no answer
	t.Cleanup(c2.Close)
	set()
	if a := c2.Ask(plain); a.Convert == nil {
		t.Errorf("a server that is plain again: %+v", a)
	}
}

// The proxy works also if no converter is wanted any more. It leads directly then.
func TestProxyWithoutConverters(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	bob, server := netip.MustParseAddrPort("192.0.2.1:5124"), netip.MustParseAddrPort("203.0.113.1:80")
	for _, addr := range []netip.Addr{bob.Addr(), server.Addr()} {
		ns.Output(t, "ip", "addr", "add", addr.String()+"/32", "dev", "lo")
	}
	go echoes(ns.Listen(t, server.String()), nil)
	r, _ := started(t, ns, t.TempDir(), "1")
	proof := key.Seal(cookie.Claim{Mark: 1, Client: bob.Addr(), Expires: time.Now().Add(time.Hour)})
	use := Use{Mode: choice.Always, Proxy: "127.0.0.1:1080", Converters: []Converter{{Name: "bob", At: bob, Cookie: proof}}}
	for _, mode := range []choice.Mode{choice.Always, choice.Never} {
		use.Mode = mode
		if _, err := r.Set(State{Serve: &Serve{Port: bob.Port(), Key: key}, Use: &use}); err != nil {
			t.Fatal(err)
		}
		socks(t, ns, use.Proxy, server)
		status, err := r.Status()
		if err != nil || status.Parts[PartServe].Counters.Accepted != 1 { // by the first mode
			t.Errorf("mode %v: %+v, %v", mode, status.Parts, err)
		}
	}
}
