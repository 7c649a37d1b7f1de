package waypoint

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// A member in a tunnel reaches the converter at the waypoint's host, and nothing else there. What the converter answers does
// not leave unencrypted when the tunnel's interface is gone, as after the agent's end.
func TestConverterInTunnel(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.Converter = &Converter{Port: 5124, Key: converterKey}
	n.startTunnel(t)
	n.waypoint.Listen(t, "0.0.0.0:22")
	if _, err := n.from(t, tunnel4, netip.MustParseAddrPort("10.2.0.2:22")); !errors.Is(err, unix.ETIMEDOUT) && !isTimeout(err) {
		t.Errorf("another service: %v", err)
	}
	n.server.Output(t, "nft", `table inet watch { chain arriving { type filter hook prerouting priority 0; ip daddr 10.77.0.0/24 counter; ip6 daddr fd77::/64 counter; }; }`)
	n.waypoint.Output(t, "ip", "-6", "route", "add", "default", "via", "fd02::1")
	var answering []net.Conn
	for from, to := range map[netip.Addr]string{tunnel4: "10.2.0.2:5124", tunnel6: "[fd02::2]:5124"} {
		var l net.Listener
		n.waypoint.Must(t, func() (err error) {
			l, err = net.Listen("tcp", to)
			return err
		})
		t.Cleanup(func() { l.Close() })
		if _, err := n.from(t, from, netip.MustParseAddrPort(to)); err != nil {
			t.Fatalf("the converter at %s: %v", to, err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		answering = append(answering, c)
	}
	n.waypoint.Output(t, "ip", "link", "delete", tunnelName)
	for _, c := range answering {
		if _, err := c.Write([]byte("something that only the member is to read")); err != nil {
			t.Fatal(err)
		}
	}
	for began := time.Now(); n.dropped(t, "output") < len(answering); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatal("the answers were not dropped")
		}
	}
	if list := n.server.Output(t, "nft", "list", "table", "inet", "watch"); strings.Count(list, "counter packets 0") != 2 {
		t.Errorf("an answer left in the clear:\n%s", list)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// A waypoint knows which addresses are its own. Those of a NAT before it are not.
func TestHasAddress(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	w := n.startTunnel(t)
	for addr, want := range map[string]bool{"10.2.0.2": true, "fd02::2": true, "10.2.0.1": false, "62.0.0.9": false} {
		if w.HasAddress(netip.MustParseAddr(addr)) != want {
			t.Errorf("the waypoint has %s: %v", addr, !want)
		}
	}
}

// A cookie that is good in a tunnel is given to the member that has the tunnel, and is good from nowhere else.
func TestConverterCookieInTunnel(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.config.Converter = &Converter{Port: 5124, Key: converterKey}
	w := n.startTunnel(t)
	ask := func(member string, from netip.Addr) (wire.TunnelGrant, *wire.Refusal) {
		return w.Converter(t.Context(), overSession(member, client4, 1), wire.TunnelRequest{ID: 1, Kind: wire.Converter, From: from})
	}
	for _, from := range []netip.Addr{tunnel4, tunnel6} {
		grant, refusal := ask("alice", from)
		if refusal != nil || grant.From != from {
			t.Fatalf("%v: granted %+v, %v", from, grant, refusal)
		}
		if _, err := converterKey.Open(grant.Cookie, from, time.Now()); err != nil {
			t.Errorf("%v: %v", from, err)
		}
		if _, err := converterKey.Open(grant.Cookie, client4, time.Now()); err == nil {
			t.Errorf("the cookie for %v is good outside of the tunnel, too", from)
		}
	}
	for member, from := range map[string]netip.Addr{"mallory": tunnel4, "alice": netip.MustParseAddr("10.77.0.3")} {
		if grant, refusal := ask(member, from); refusal == nil || refusal.Code != wire.NotReady || len(grant.Cookie) > 0 {
			t.Errorf("%s in the tunnel of %v: granted %+v, %v", member, from, grant, refusal)
		}
	}
}
