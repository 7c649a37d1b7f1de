package mptcp_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/mptcp/internal/threehosts"
)

// A connection whose first subflow a host in the middle forwards to a server with MPTCP can leave this host after some
// kilobytes: a direct subflow joins, and the first one becomes a backup (MP_PRIO) or ends. docs/converter.md says why a
// connection that was converted cannot.
func TestLeavesTheMiddle(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, c *connected){
		"MP_PRIO": func(t *testing.T, c *connected) {
			if err := c.client.SetBackup(c.token, c.local, c.detour(0), true); err != nil {
				t.Fatal(err)
			}
		},
		"removal": func(t *testing.T, c *connected) { c.destroy(t, c.local, c.detour(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, false)
			c := &connected{site: s, client: watch(t, s.Client)}
			c.toKernel = s.Client.UserspacePM(t, c.client.UserspacePMSysctl)
			c.conn = s.Client.Dial(t, c.detour(0))
			threehosts.Echo(t, c.conn, strings.Repeat("before ", 2000))
			c.client.next(t, mptcp.Created)
			ev := c.client.next(t, mptcp.Established)
			c.token, c.local = ev.Token, ev.Local
			c.join(t, mptcp.NewSubflow{Local: netip.AddrPortFrom(c.Client.IP4, 0), LocalID: 1, Remote: c.server})
			before := forwarded(t, c)
			if before < 2*14000 {
				t.Errorf("the host in the middle has forwarded %d bytes", before)
			}
			leave(t, c)
			// The server may hear of it later than of what comes by the direct path.
			const more, rounds = 256 << 10, 20
			passed := more
			for round := 0; round < rounds && passed > more/20; round++ {
				before = forwarded(t, c)
				threehosts.Echo(t, c.conn, strings.Repeat("x", more))
				passed = forwarded(t, c) - before
			}
			if passed > more/20 {
				t.Errorf("%d of %d bytes still go through the middle", passed, 2*more)
			}
		})
	}
}

// forwarded returns the bytes that have arrived at the host in the middle.
func forwarded(t *testing.T, c *connected) int { t.Helper(); return arrived(t, c.site, 0) }

// arrived returns a counter of what has arrived at the host in the middle: 0 for bytes, 1 for packets.
func arrived(t testing.TB, s *site, counter int) int {
	t.Helper()
	_, text, _ := strings.Cut(s.Waypoint.Run(t, "", "cat", "/proc/net/dev"), "eth0:")
	fields := strings.Fields(text)
	if len(fields) <= counter {
		t.Fatal("no eth0")
	}
	n, err := strconv.Atoi(fields[counter])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// BenchmarkLeavesTheMiddle measures what leaving saves the host in the middle, in packets, as G. Detal's thesis of 2014 did in
// instructions (figure 4.16), and how long it takes the client, as the thesis did in requests a second (figure 4.15). Each
// connection exchanges 4 kB, may leave, and exchanges the rest.
func BenchmarkLeavesTheMiddle(b *testing.B) {
	const first = 4 << 10
	for _, way := range []string{"stays", "MP_PRIO", "removal"} {
		for _, size := range []int{16 << 10, 128 << 10, 1 << 20, 8 << 20} {
			b.Run(fmt.Sprintf("%s/%dkB", way, size>>10), func(b *testing.B) {
				s := newSite(b, false)
				// With Linux's default, many of the larger connections stand still for 200 ms, see docs/lab.md.
				for _, h := range []*threehosts.Host{s.Client, s.Server} {
					h.Sysctl(b, "net/ipv4/tcp_rmem", "4096 4194304 33554432")
				}
				client := watch(b, s.Client)
				s.Client.UserspacePM(b, client.UserspacePMSysctl)
				middle := netip.AddrPortFrom(s.Waypoint.IP4, firstDetour)
				before := arrived(b, s, 1)
				for b.Loop() {
					conn := s.Client.Dial(b, middle)
					stream(b, conn, first)
					ev := client.await(b, mptcp.Established, 0)
					if way != "stays" {
						join := mptcp.NewSubflow{Token: ev.Token, Local: netip.AddrPortFrom(s.Client.IP4, 0), LocalID: 1, Remote: s.server}
						if err := client.CreateSubflow(join); err != nil {
							b.Fatal(err)
						}
						client.await(b, mptcp.SubflowEstablished, ev.Token)
					}
					var err error
					switch way {
					case "MP_PRIO":
						err = client.SetBackup(ev.Token, ev.Local, middle, true)
					case "removal":
						err = client.DestroySubflow(ev.Token, ev.Local, middle)
					}
					if err != nil {
						b.Fatal(err)
					}
					stream(b, conn, size-first)
					conn.Close()
				}
				b.ReportMetric(float64(arrived(b, s, 1)-before)/float64(b.N), "packets/op")
			})
		}
	}
}

// stream sends bytes and receives them again, at the same time.
func stream(b *testing.B, conn net.Conn, bytes int) {
	b.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(make([]byte, bytes))
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, conn, int64(bytes))
	if err != nil {
		conn.Close()
	}
	if err = errors.Join(err, <-sent); err != nil {
		b.Fatal(err)
	}
}

// await returns the next event of a kind for a connection, and skips others. A token of 0 stands for any connection.
func (w *watcher) await(t testing.TB, kind mptcp.EventKind, token uint32) mptcp.Event {
	t.Helper()
	for {
		select {
		case ev := <-w.events:
			if ev.Kind == kind && (token == 0 || ev.Token == token) {
				return ev
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no event %v", kind)
		}
	}
}
