package client

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// A program that waits is told whether its server was reached, before any byte of the server. Clients without the cookie are
// reset, and so are those that send no Connect.
func TestWaiting(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	c := member(t, choice.Always, convAt)
	const user = 1000
	_, at := enginetest.StartAt(t, c.Redirected(
		func(netip.AddrPort) (choice.Who, netip.AddrPort, bool) { return choice.Who{}, netip.AddrPort{}, false },
		c.Waiting(func(cookie []byte, at netip.Addr) (choice.Who, bool) {
			return choice.Who{User: user}, string(cookie) == "yes!" && at == netip.MustParseAddr(here)
		})), enginetest.Listen(t, here, false))
	greets := enginetest.Serve(t, server4, false, func(c *net.TCPConn) { _, _ = c.Write([]byte("hello")) })
	closed := enginetest.Nobody(t, server4)
	ask := func(request []byte) *net.TCPConn {
		t.Helper()
		p := enginetest.Dial(t, at, false)
		_ = p.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := p.Write(request); err != nil {
			t.Fatal(err)
		}
		return p
	}
	request := func(to netip.AddrPort, cookie string) []byte {
		t.Helper()
		b, err := rfc8803.Message{Connect: &rfc8803.Connect{Server: to}, Cookie: []byte(cookie)}.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	got, err := io.ReadAll(ask(request(greets, "yes!")))
	m, n, decodeErr := rfc8803.Decode(got)
	if err := errors.Join(err, decodeErr); err != nil || m.Error != nil || string(got[n:]) != "hello" {
		t.Errorf("from a server that greets: %q, %v", got, err)
	}
	if conv.Counters().Accepted != 1 {
		t.Errorf("%d connections through the converter, want 1", conv.Counters().Accepted)
	}
	got, err = io.ReadAll(ask(request(closed, "yes!")))
	m, _, decodeErr = rfc8803.Decode(got)
	if err := errors.Join(err, decodeErr); err != nil || m.Error == nil || m.Error.Code != rfc8803.ConnectionReset {
		t.Errorf("of a server that refuses: %q, %v", got, err)
	}
	for name, bad := range map[string][]byte{
		"another cookie": request(greets, "no!!"), "no message": []byte("GET / HTTP/1.1\r\n\r\n"), "no server": {1, 1, 0x22, 0x63},
	} {
		if got, err := io.ReadAll(ask(bad)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %q, %v, want a reset", name, got, err)
		}
	}
}
