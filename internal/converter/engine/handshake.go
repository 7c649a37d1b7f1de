package engine

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/deadline"
)

// handshake is a client's, of MPTCP with data in the SYN (TFO), which is accepted before the handshake has ended.
// What is written before that, Linux sends only when the client's next packet comes, and a client that waits for
// an answer sends none. The kernel reports no event either, so the loop looks again and again.
type handshake struct {
	pair  *pair
	began time.Time
	due   deadline.Entry[*handshake]
}

// handshakePause is how long the loop waits before it looks for the first time, and at least between two looks.
const handshakePause = 2 * time.Millisecond

// watchHandshake has what is written to a client sent once its handshake has ended, if it has not yet.
func (l *loop) watchHandshake(p *pair) {
	if !l.opensFast || p.client.speaksTCP() || !inHandshake(int(p.client.fd)) {
		return
	}
	h := &handshake{pair: p, began: time.Now()}
	h.due.Item = h
	l.handshakes.Set(&h.due, h.began.Add(handshakePause))
}

// endHandshakes looks at those whose time has come.
func (l *loop) endHandshakes(now time.Time) {
	for first := l.handshakes.First(); first != nil && !now.Before(first.Due()); first = l.handshakes.First() {
		h := first.Item
		switch fd := int(h.pair.client.fd); {
		case h.pair.closed:
			l.handshakes.Set(first, time.Time{})
		case inHandshake(fd):
			l.handshakes.Set(first, now.Add(max(now.Sub(h.began)/8, handshakePause)))
		default:
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // sends what waits
			l.handshakes.Set(first, time.Time{})
		}
	}
}

// takesFastOpen reports whether a listener accepts connections whose SYN has data.
func takesFastOpen(listener int) bool {
	queue, errno := intOption(listener, unix.IPPROTO_TCP, unix.TCP_FASTOPEN)
	return errno != 0 || queue > 0
}

// inHandshake reports whether the peer has not acknowledged the SYN+ACK yet.
func inHandshake(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == unix.BPF_TCP_SYN_RECV
}
