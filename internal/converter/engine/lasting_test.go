package engine

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An end to a server is asked whether it is still there, once the connection has lived for a moment.
func TestLastingAreKeptAlive(t *testing.T) {
	for _, mptcp := range []bool{false, true} {
		at := serve(t, mptcp, echo)
		var l loop
		begin := func() *pair {
			fd, _, err := connect(&Dial{To: at, MPTCP: mptcp})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			p := &pair{server: end{fd: int32(fd)}}
			l.settleLater(p)
			return p
		}
		kept := func(p *pair) bool {
			alive, err := unix.GetsockoptInt(int(p.server.fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE)
			idle, err2 := unix.GetsockoptInt(int(p.server.fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
			if err != nil || err2 != nil || (alive == 1) != (idle == keepIdle) {
				t.Errorf("SO_KEEPALIVE %d, %v; TCP_KEEPIDLE %d, %v", alive, err, idle, err2)
			}
			return alive == 1
		}
		lasts, ended, refused := begin(), begin(), begin()
		ended.closed, refused.server.fd = true, -1
		now := l.settles
		l.settle(now)
		later := begin()
		if kept(lasts) {
			t.Errorf("MPTCP %v: a young end has its options", mptcp)
		}
		l.settle(now.Add(settleAfter - time.Millisecond))
		if kept(lasts) {
			t.Errorf("MPTCP %v: an end has its options too early", mptcp)
		}
		l.settle(now.Add(settleAfter))
		if !kept(lasts) || kept(later) || kept(ended) {
			t.Errorf("MPTCP %v: the end that lasts %v, a later one %v, one that has ended %v", mptcp, kept(lasts), kept(later), kept(ended))
		}
		l.settle(now.Add(2 * settleAfter))
		if !kept(later) || !l.settles.IsZero() || len(l.young)+len(l.older) > 0 {
			t.Errorf("MPTCP %v: the later one %v; %d and %d wait until %v", mptcp, kept(later), len(l.young), len(l.older), l.settles)
		}
	}
}

// An end that has vanished without a word is noticed by keep-alives, and the other end is reset.
func TestVanishedEnds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: closes a connection unnoticed by its peer (TCP_REPAIR)")
	}
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			l := listen(t, false)
			defer l.Close()
			_, at := start(t, Config{Front: toServer{server: netip.MustParseAddrPort(l.Addr().String())}}, false)
			client := dial(t, at, false)
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			server := accepted.(*net.TCPConn)
			defer server.Close()
			_ = server.SetDeadline(time.Now().Add(30 * time.Second))
			gone, stays := client, server
			if who == "server" {
				gone, stays = server, client
			}
			probeSoon(t, gone)
			raw, err := gone.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) {
					if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
						t.Error(err)
					}
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = gone.Close()
			if _, err := stays.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%v, want a reset", err)
			}
		})
	}
}

// probeSoon waits until the engine's socket of a connection is kept alive, and shortens the silence before the first probe.
func probeSoon(t *testing.T, c *net.TCPConn) {
	t.Helper()
	eventually(t, "the engine keeps the connection alive", func() bool {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			fd, err := strconv.Atoi(entry.Name())
			if err != nil {
				t.Fatal(err)
			}
			peer, err := unix.Getpeername(fd)
			if four, ok := peer.(*unix.SockaddrInet4); err != nil || !ok || four.Port != c.LocalAddr().(*net.TCPAddr).Port {
				continue
			}
			local, err := localAddr(fd)
			if err != nil || local.String() != c.RemoteAddr().String() {
				continue
			}
			alive, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
			return err == nil && alive == 1 && unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1) == nil
		}
		return false
	})
}
