package client

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
)

// Hundreds of connections at once, some of which are reset, go to servers that are not there, or whose first
// converter resets them, all end. Nothing of them stays in either engine.
func TestManyConnections(t *testing.T) {
	needsNamespace(t)
	conv, convAt := startConverter(t)
	bad := enginetest.Serve(t, converter, true, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	c := member(t, choice.Always, bad, convAt)
	relay, at := enginetest.StartAt(t, c.CONNECT(), enginetest.Listen(t, here, true))
	to, nobody := enginetest.Serve(t, server4, false, enginetest.Echo), enginetest.Nobody(t, server4)
	resets := enginetest.Serve(t, server4, false, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1000))
		_ = c.SetLinger(0)
	})
	before := sockets(t)
	var all sync.WaitGroup
	var reset atomic.Int64
	for worker := range uint64(40) {
		random := rand.New(rand.NewPCG(worker, 7))
		all.Go(func() {
			for range 15 {
				// The bad converter is chosen again and again, also while others are being tried.
				c.Update(func(c *choice.Choice) { c.SetConverters(nil); c.SetConverters([]netip.AddrPort{bad, convAt}) })
				var d net.Dialer
				d.SetMultipathTCP(random.IntN(2) == 0)
				dialled, err := d.DialContext(t.Context(), "tcp", at.String())
				if err != nil {
					t.Error(err)
					return
				}
				conn := dialled.(*net.TCPConn)
				switch random.IntN(5) {
				case 0:
					_, _ = fmt.Fprintf(conn, "CONNECT %v HTTP/1.1\r\n\r\n", nobody)
					status(t, conn, http.StatusBadGateway)
				case 1:
					_, _ = fmt.Fprintf(conn, "CONNECT %v HTTP/1.1\r\n\r\n", to)
					reset.Add(1)
					_ = conn.SetLinger(0) // and closes at any moment of the opening
				case 2:
					_, _ = fmt.Fprintf(conn, "CONNECT %v HTTP/1.1\r\n\r\nx", resets)
					_, _ = io.Copy(io.Discard, conn)
				default:
					_, _ = fmt.Fprintf(conn, "CONNECT %v HTTP/1.1\r\n\r\n", to)
					status(t, conn, http.StatusOK)
					enginetest.Exchange(t, conn, 1+random.IntN(200_000))
				}
				conn.Close()
			}
		})
	}
	all.Wait()
	enginetest.Eventually(t, "all pairs end", func() bool {
		r, c := relay.Counters(), conv.Counters()
		return r.Pairs+c.Pairs == 0 && r.Waiting+c.Waiting == 0
	})
	// The kernel does not show connections that were reset before they could be accepted.
	if n := relay.Counters().Accepted; n > 40*15 || n < 40*15-reset.Load() {
		t.Errorf("%d connections, of which at most %d were reset", n, reset.Load())
	}
	enginetest.Eventually(t, "all sockets are closed", func() bool { return sockets(t) == before })
	if conv.Counters().Accepted == 0 {
		t.Error("none went through the converter")
	}
}

// sockets returns how many sockets this process has open.
func sockets(t *testing.T) (n int) {
	t.Helper()
	const folder = "/proc/self/fd/"
	open, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if to, err := os.Readlink(folder + fd.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
