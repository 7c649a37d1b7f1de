package engine

import (
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
