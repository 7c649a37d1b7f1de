package relay

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/lab/testbed"
)

// BenchmarkWaits prints how long a program at the proxy waits, on a path of 40 ms to the converter and 20 ms from there to
// the server: until it is told that it is connected, and until the first byte of an answer to its request, which it sends
// then, or at once. docs/converter.md has the medians.
func BenchmarkWaits(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: makes network namespaces")
	}
	link := func(delay time.Duration) testbed.LinkParams { return testbed.LinkParams{Rate: 1e9, Delay: delay} }
	n, err := testbed.Build(b.Context(), testbed.Spec{
		Hosts: []testbed.HostSpec{
			{Name: "member"},
			{Name: "converter", Forward: true, Sysctls: map[string]string{"net.ipv4.tcp_fastopen": "3"}},
			{Name: "server", NoMPTCP: true},
		},
		Links: []testbed.LinkSpec{
			{Name: "near", A: "member", B: "converter", AtoB: link(20 * time.Millisecond), BtoA: link(20 * time.Millisecond)},
			{Name: "far", A: "converter", B: "server", AtoB: link(10 * time.Millisecond), BtoA: link(10 * time.Millisecond)},
		},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { n.Close() })
	server := netip.AddrPortFrom(n.Host("server").Addr4(), 8080)
	var l net.Listener
	on(b, n.Host("server"), func() (err error) {
		l, err = new(net.ListenConfig).Listen(b.Context(), "tcp", server.String())
		return err
	})
	netnstest.Serve(b, l, netnstest.Echo)

	member, at := n.Host("member"), netip.AddrPortFrom(n.Host("converter").Addr4(), port)
	set(b, relayOn(b, n.Host("converter")), State{Serve: &Serve{Port: port, Key: key, FastOpen: true}})
	proof := key.Seal(cookie.Claim{Mark: 1, Client: member.Addr4(), Expires: time.Now().Add(time.Hour)})
	use := &Use{Mode: choice.Always, Proxy: "127.0.0.1:1080", Converters: []Converter{{Name: "bob", At: at, Cookie: proof}}}
	r := relayOn(b, member)
	for _, fast := range []bool{false, true} {
		use.FastOpen = fast
		set(b, r, State{Use: use})
		for range 3 { // asks for a cookie, and proves the path
			waits(b, member, server, false)
		}
		var connected, first, early []time.Duration
		for range 41 {
			c, f := waits(b, member, server, false)
			_, e := waits(b, member, server, true)
			connected, first, early = append(connected, c), append(first, f), append(early, e)
		}
		b.Logf("in the SYN: %v; connected after %v, first byte after %v, or after %v if the request is sent at once", fast, median(connected), median(first), median(early))
	}
	b.ReportMetric(0, "ns/op")
}

func median(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/2].Round(100 * time.Microsecond)
}

func on(b *testing.B, h *testbed.Host, do func() error) {
	b.Helper()
	if err := h.Do(do); err != nil {
		b.Fatal(err)
	}
}

// relayOn runs a relay on a host.
func relayOn(b *testing.B, h *testbed.Host) *Conn {
	b.Helper()
	dir := b.TempDir()
	cmd := exec.Command("/proc/self/exe", "relay", dir, "1")
	on(b, h, cmd.Start)
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
		if c, err := Dial(dir); err == nil {
			b.Cleanup(func() { c.Close() })
			return c
		}
	}
	b.Fatal("the relay does not answer")
	return nil
}

func set(b *testing.B, c *Conn, s State) {
	b.Helper()
	if _, err := c.Set(s); err != nil {
		b.Fatal(err)
	}
}

// waits sends a request through the proxy, once that has answered or at once, and reads the first byte of the answer.
func waits(b *testing.B, h *testbed.Host, server netip.AddrPort, atOnce bool) (connected, first time.Duration) {
	b.Helper()
	var c net.Conn
	began := time.Now()
	on(b, h, func() (err error) {
		c, err = new(net.Dialer).DialContext(context.Background(), "tcp", "127.0.0.1:1080")
		return err
	})
	defer c.Close()
	to := server.Addr().As4()
	hello := binary.BigEndian.AppendUint16(append([]byte{5, 1, 0, 5, 1, 0, 1}, to[:]...), server.Port())
	if atOnce {
		hello = append(hello, "request"...)
	}
	_, _ = c.Write(hello)
	reply := make([]byte, 12)
	if _, err := io.ReadFull(c, reply); err != nil || reply[3] != 0 {
		b.Fatalf("%x, %v", reply, err)
	}
	connected = time.Since(began)
	if !atOnce {
		_, _ = c.Write([]byte("request"))
	}
	if _, err := io.ReadFull(c, reply[:1]); err != nil {
		b.Fatal(err)
	}
	return connected, time.Since(began)
}
