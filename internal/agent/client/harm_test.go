package client

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/detour"
)

// What becomes of a download when its waypoint does harm while its session lives.

// newDownload is a connection that receives a load over the direct path and a detour, of bob
// or of the spare waypoint, whichever was offered first.
func newDownload(t *testing.T, load string, sysctls ...string) (l *lab, conn net.Conn, used string) {
	t.Helper()
	l = buildLab(t, serverPort)
	l.spare = detour.Via{Waypoint: "carol", Addr: l.Host("other").Addr4()}
	for _, host := range []string{"client", "server"} {
		for _, s := range sysctls {
			l.sh(host, "sysctl -qw "+s)
		}
	}
	// Both paths are slow, so that the server needs both.
	for host, link := range map[string]string{"waypoint": "3", "other": "5"} {
		l.slow(host, link, "10mbit")
	}
	l.slow("router", "1", "25mbit")
	l.serve()
	l.startClient()
	conn = l.dial()
	if _, err := io.WriteString(conn, load+"\n"); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, conn)
	u := l.eventually("the detour carries data", func(u *api.Using) bool {
		return paths(u) == "direct up, mapped up" && u.Connections[0].Subflows[1].BytesReceived > 1<<20
	})
	used = u.Connections[0].Subflows[1].Waypoint
	return l, conn, used
}

func (l *lab) slow(host, link, rate string) {
	l.t.Helper()
	l.sh(host, fmt.Sprintf("tc qdisc add dev %s root tbf rate %s burst 16kb latency 50ms", l.Host(host).Interface(link), rate))
}

// hostOf is the host of a waypoint, and other the waypoint that is not that one.
func hostOf(waypoint string) string {
	return map[string]string{"bob": "waypoint", "carol": "other"}[waypoint]
}
func other(waypoint string) string {
	return map[string]string{"bob": "carol", "carol": "bob"}[waypoint]
}

func subflowThrough(u *api.Using, waypoint string) (found api.Subflow, ok bool) {
	if len(u.Connections) == 0 {
		return found, false
	}
	i := slices.IndexFunc(u.Connections[0].Subflows, func(s api.Subflow) bool { return s.Waypoint == waypoint })
	if i < 0 {
		return found, false
	}
	return u.Connections[0].Subflows[i], true
}

func (l *lab) movedTo(waypoint string) *api.Using {
	l.t.Helper()
	return l.eventually("a detour through "+waypoint+" in place of the other", func(u *api.Using) bool {
		s, ok := subflowThrough(u, waypoint)
		_, still := subflowThrough(u, other(waypoint))
		return ok && s.State == "up" && !still
	})
}

// A subflow on which a checksum failed is reset by the kernel without an event.
func TestCorruptionIsLeft(t *testing.T) {
	l, _, bad := newDownload(t, "download", "net.mptcp.checksum_enabled=1")
	began := time.Now()
	// The rule writes into what the server sends, beyond the headers.
	l.nftOn(hostOf(bad), fmt.Sprintf(`table ip corrupt { chain harm {
		type filter hook forward priority 0; tcp sport %d ip length > 1000 @th,4000,32 set 0xdeadbeef; }; }`, serverPort))
	l.movedTo(other(bad))
	t.Logf("moved after %v", time.Since(began))

	second := l.dial() // a later connection does not take it either
	echo(t, second, "hello")
	u := l.eventually("a second connection with a detour", func(u *api.Using) bool {
		return len(u.Connections) == 2 && len(u.Connections[1].Subflows) == 2
	})
	if via := u.Connections[1].Subflows[1]; via.Waypoint != other(bad) {
		t.Errorf("the second connection goes through %s", via.Waypoint)
	}
	if why := blamedFor(t, l, bad); !strings.Contains(why, "arrived changed") {
		t.Errorf("%s is not blamed: %q", bad, why)
	}
}

// blamedFor returns what dcol status prints about a waypoint's detour.
func blamedFor(t *testing.T, l *lab, waypoint string) (why string) {
	t.Helper()
	_, err := call(t.Context(), l.client.inbox, func(now time.Time) (struct{}, error) {
		for _, d := range l.client.manager.Snapshot(now).Detours {
			if d.Waypoint == waypoint {
				why = d.Why
			}
		}
		return struct{}{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return why
}

// A waypoint that drops TCP, and whose session lives, keeps no place of a connection that
// receives. How soon, path's TestHoleIsFoundOut asserts in virtual time, and for streams, too.
func TestHoleIsLeft(t *testing.T) {
	for load := range loads {
		t.Run(load, func(t *testing.T) {
			t.Parallel()
			l, _, bad := newDownload(t, load)
			if l.client.sampler.prober == nil {
				t.Skip("needs cgroup v2: the detour cannot be probed")
			}
			time.Sleep(3 * time.Second) // the detour becomes one whose habits are known
			began := time.Now()
			l.nftOn(hostOf(bad), "table ip hole { chain harm { type filter hook forward priority 0; meta l4proto tcp drop; }; }")
			l.eventually("the detour is a backup", func(u *api.Using) bool {
				s, ok := subflowThrough(u, bad)
				return !ok || s.State == "backup"
			})
			t.Logf("demoted after %v", time.Since(began))
			l.movedTo(other(bad))
			t.Logf("moved after %v", time.Since(began))
			if why := blamedFor(t, l, bad); !strings.Contains(why, "nothing arrived through") {
				t.Errorf("%s is not blamed: %q", bad, why)
			}
			l.eventually("data comes by the other detour", func(u *api.Using) bool {
				s, ok := subflowThrough(u, other(bad))
				return ok && s.BytesReceived > 1<<16
			})
		})
	}
}
