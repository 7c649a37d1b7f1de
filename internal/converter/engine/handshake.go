package engine

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/deadline"
)

// handshake is the unfinished handshake of a client that sent data in its SYN (TFO) over MPTCP. Linux accepts such a
// connection before the handshake ends, and sends what is written until then only when the client's next packet comes.
// A client that waits for an answer sends none. The kernel reports no event either, so the loop polls the socket.
type handshake struct {
	pair  *pair
	began time.Time
	due   deadline.Entry[*handshake]
}

// handshakePause is the time before the loop first polls a handshake, and the least time between two polls.
const handshakePause = 2 * time.Millisecond

// watchHandshake lets the loop poll a client's handshake if it has not ended, and then send what was written.
func (l *loop) watchHandshake(p *pair) {
	if !l.opensFast || p.client.speaksTCP() || !inHandshake(int(p.client.fd)) {
		return
	}
	h := &handshake{pair: p, began: time.Now()}
	h.due.Item = h
	l.handshakes.Set(&h.due, h.began.Add(handshakePause))
}

// endHandshakes polls the handshakes that are due. It sends what was written to clients whose handshake has ended.
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
