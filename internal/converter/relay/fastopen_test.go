package relay

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// countFastOpens returns how often a cookie was asked for in a namespace, and data in a SYN acknowledged.
func countFastOpens(t *testing.T, ns *netnstest.NS) (cookies, acked int) {
	t.Helper()
	var text []byte
	ns.Must(t, func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/netstat")
		return err
	})
	lines := strings.Split(string(text), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		values := strings.Fields(lines[i+1])
		for j, name := range strings.Fields(lines[i]) {
			switch n, _ := strconv.Atoi(values[j]); name {
			case "TCPFastOpenCookieReqd":
				cookies = n
			case "TCPFastOpenActive":
				acked = n
			}
		}
	}
	return cookies, acked
}

// Messages go in SYNs if both sides are configured so, also if that changes, and after another relay has taken over.
func TestFastOpen(t *testing.T) {
	t.Parallel()
	ns, dir := netnstest.New(t), t.TempDir()
	ns.Output(t, "sysctl", "-qw", "net.ipv4.tcp_fastopen=3")
	ns.Output(t, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	server := netip.MustParseAddrPort("192.0.2.1:8080")
	ns.Must(t, func() error {
		var plain net.ListenConfig // a server with MPTCP would be reached directly
		plain.SetMultipathTCP(false)
		l, err := plain.Listen(t.Context(), "tcp", server.String())
		if err == nil {
			netnstest.Serve(t, l, netnstest.Echo)
		}
		return err
	})
	here, proxy := netip.MustParseAddr("127.0.0.1"), "127.0.0.1:1080"
	proof := key.Seal(cookie.Claim{Mark: 1, Client: here, Expires: time.Now().Add(time.Minute)})
	r, _ := started(t, ns, dir, "1")
	for i, step := range []struct {
		takes, sends, handover bool
	}{
		{}, {takes: true}, {takes: true, sends: true}, {sends: true}, {takes: true, sends: true}, {takes: true, sends: true, handover: true}, {handover: true},
	} {
		if step.handover {
			r, _ = started(t, ns, dir, fmt.Sprintf("after %d", i))
		}
		ns.Output(t, "ip", "tcp_metrics", "flush")
		status, err := r.Set(State{
			Serve: &Serve{Port: port, Key: key, FastOpen: step.takes},
			Use: &Use{
				Mode: choice.Always, Proxy: proxy, FastOpen: step.sends,
				Converters: []Converter{{Name: "bob", At: netip.AddrPortFrom(here, port), Cookie: proof}},
			},
		})
		if err != nil || status.Parts[PartServe].Problem != "" {
			t.Fatalf("%+v, %v", status, err)
		}
		cookies, acked := countFastOpens(t, ns)
		for range 2 {
			socks(t, ns, proxy, server)
		}
		nextCookies, nextAcked := countFastOpens(t, ns)
		wantCookies, wantAcked := 0, 0
		switch {
		case step.takes && step.sends:
			wantCookies, wantAcked = 1, 1
		case step.sends: // each asks, and gets none
			wantCookies = 2
		}
		if nextCookies-cookies != wantCookies || nextAcked-acked != wantAcked {
			t.Errorf("%+v: %d cookies asked for, data in %d SYNs", step, nextCookies-cookies, nextAcked-acked)
		}
	}
}

// socks talks with an echo server through a proxy.
func socks(t *testing.T, ns *netnstest.NS, proxy string, server netip.AddrPort) {
	t.Helper()
	c, err := ns.Dial(t.Context(), netip.MustParseAddrPort(proxy))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	to := server.Addr().As4()
	request := append([]byte{5, 1, 0, 5, 1, 0, 1}, to[:]...)
	if _, err := c.Write(append(request, byte(server.Port()>>8), byte(server.Port()))); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 12)
	if _, err := io.ReadFull(c, reply); err != nil || reply[3] != 0 {
		t.Fatalf("%x, %v", reply, err)
	}
	if err := talk(c, "hello"); err != nil {
		t.Error(err)
	}
}
