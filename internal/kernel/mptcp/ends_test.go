package mptcp_test

import (
	"context"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/internal/threehosts"
)

// collectEnds returns the ends of the host's sockets from now on.
func collectEnds(t *testing.T, h *threehosts.Host) <-chan mptcp.End {
	t.Helper()
	var ends *mptcp.Ends
	h.Do(t, func() (err error) {
		ends, err = mptcp.OpenEnds()
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	found, done := make(chan mptcp.End, 256), make(chan error)
	go func() {
		done <- ends.Listen(ctx, func(e mptcp.End) { found <- e }, func() { t.Error("reports were lost") })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Listen: %v", err)
		}
		if err := ends.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return found
}

// awaitEnd waits for the end of a socket with that remote address.
func awaitEnd(t *testing.T, ends <-chan mptcp.End, remote netip.AddrPort) mptcp.End {
	t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case e := <-ends:
			if e.Remote == remote {
				return e
			}
		case <-deadline:
			t.Fatalf("the end of the socket to %v was not reported", remote)
		}
	}
}

// The last counters of a short connection's subflows have every byte, and a destroyed detour has its end, too.
func TestEndsOfSubflows(t *testing.T) {
	c := connect(t)
	ends := collectEnds(t, c.Client)
	detour := c.join(t, mptcp.NewSubflow{Local: netip.AddrPortFrom(c.Client.IP4, 0), LocalID: 1, Remote: c.detour(0)})
	text := strings.Repeat("exact ", 50_000)
	go func() { _, _ = io.WriteString(c.conn, text) }()
	if _, err := io.ReadFull(c.conn, make([]byte, len(text))); err != nil {
		t.Fatal(err)
	}
	c.destroy(t, detour.Local, detour.Remote)
	c.conn.Close()
	via, direct := awaitEnd(t, ends, detour.Remote), awaitEnd(t, ends, c.server)
	t.Logf("detour %+v, direct %+v, %d bytes", via, direct, len(text))
	if via.Local != detour.Local {
		t.Errorf("the detour ended at %v, not at %v", via.Local, detour.Local)
	}
	// What was sent again on the other subflow counts twice, and SYN and FIN count for a byte each.
	for _, sum := range []uint64{via.BytesReceived + direct.BytesReceived, via.BytesAcked + direct.BytesAcked} {
		if least := uint64(len(text)); sum < least || sum > 2*least {
			t.Errorf("%d bytes are counted of %d", sum, least)
		}
	}
}

// The counters are exact, and sockets of IPv6 are reported, too.
func TestEndsOfIPv6(t *testing.T) {
	s := newSite(t, true)
	ends := collectEnds(t, s.Client)
	conn := s.Client.Dial(t, s.server)
	threehosts.Echo(t, conn, "hello")
	conn.Close()
	if e := awaitEnd(t, ends, s.server); e.BytesReceived < 5 || e.BytesReceived > 6 || e.Local.Addr() != s.Client.IP6 {
		t.Errorf("%+v, but 5 bytes were received", e)
	}
}
