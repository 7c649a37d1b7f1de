package relay

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// The relay knows for which server each of its connections to a converter is, until another has the same ends.
func TestServersOfConnections(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	bob := netip.MustParseAddrPort("192.0.2.1:5124")
	ns.Output(t, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	var servers []netip.AddrPort
	for i := range 2 {
		server := netip.MustParseAddrPort(fmt.Sprintf("203.0.113.%d:80", i+1))
		ns.Output(t, "ip", "addr", "add", server.Addr().String()+"/32", "dev", "lo")
		go echoes(ns.Listen(t, server.String()), nil)
		servers = append(servers, server)
	}
	r, _ := started(t, ns, t.TempDir(), "1")
	proof := key.Seal(cookie.Claim{Mark: 1, Client: bob.Addr(), Expires: time.Now().Add(time.Hour)})
	use := Use{Mode: choice.Always, Proxy: "127.0.0.1:1080", Converters: []Converter{{Name: "bob", At: bob, Cookie: proof}}}
	if _, err := r.Set(State{Serve: &Serve{Port: bob.Port(), Key: key}, Use: &use}); err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		socks(t, ns, use.Proxy, server)
	}
	// All ports are asked about, so that the test needs no other way to find the connections' ends.
	var ends []Ends
	for port := 1024; port < 1<<16; port++ {
		ends = append(ends, Ends{netip.AddrPortFrom(bob.Addr(), uint16(port)), bob})
	}
	got, err := r.Servers(ends)
	if err != nil || len(got) != len(ends) {
		t.Fatalf("%d servers of %d connections, %v", len(got), len(ends), err)
	}
	got = slices.DeleteFunc(got, func(s netip.AddrPort) bool { return !s.IsValid() })
	slices.SortFunc(got, netip.AddrPort.Compare)
	if !slices.Equal(got, servers) {
		t.Errorf("the servers are %v, want %v", got, servers)
	}
}

func TestLed(t *testing.T) {
	l, at := newLed(), netip.MustParseAddrPort
	local, conv := at("192.0.2.9:40001"), at("192.0.2.1:5124")
	l.note(local, conv, at("203.0.113.1:80"))
	l.note(at("[::ffff:192.0.2.9]:40001"), conv, at("[::ffff:203.0.113.2]:80")) // the same ends later
	l.note(netip.AddrPort{}, conv, at("203.0.113.3:80"))
	got := l.find([]Ends{{local, conv}, {local, at("192.0.2.2:5124")}, {at("192.0.2.9:40002"), conv}})
	if want := []netip.AddrPort{at("203.0.113.2:80"), {}, {}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
