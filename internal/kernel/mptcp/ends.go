package mptcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// endBuffer is the size in bytes of the kernel's queue of reports about ended sockets. It has room for several thousand
// reports of about 400 bytes, to which the kernel adds its overhead.
const endBuffer = 8 << 20

// Groups of sock_diag's multicast (enum sknetlink_groups of linux/sock_diag.h).
const (
	groupTCPDestroyed  = 1
	groupTCP6Destroyed = 3
)

// End has the last counters of a TCP socket that the kernel has just freed, whether it was a subflow or not. They are
// zero for a listener or a socket that was never connected.
type End struct {
	Local, Remote netip.AddrPort
	// BytesReceived and BytesAcked are as in Metrics, and include the sequence numbers of SYN and FIN.
	BytesReceived, BytesAcked uint64
}

// Ends reports the ends of all TCP sockets of a network namespace.
type Ends struct{ conn *netlink.Conn }

// OpenEnds subscribes to the ends of sockets in the calling thread's network namespace. From then on, each end costs
// the kernel a message.
func OpenEnds() (_ *Ends, err error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag for ends of sockets: %w", err)
	}
	err = conn.SetReadBuffer(endBuffer)
	for _, group := range [...]uint32{groupTCPDestroyed, groupTCP6Destroyed} {
		if err == nil {
			err = conn.JoinGroup(group)
		}
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to ends of sockets: %w", err)
	}
	return &Ends{conn}, nil
}

// Close ends the subscription. A running Listen returns an error.
func (e *Ends) Close() error { return e.conn.Close() }

// Listen calls yield for each socket that ended since OpenEnds, until ctx ends; then it returns nil. If the kernel
// dropped reports, it calls lost. It must be called only once.
func (e *Ends) Listen(ctx context.Context, yield func(End), lost func()) error {
	socket, err := newReceiver(e.conn, eventDatagram)
	if err != nil {
		return fmt.Errorf("read ends of sockets: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { e.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for ctx.Err() == nil {
		datagram, err := socket.next()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.ENOBUFS):
			lost()
			continue
		case err != nil:
			return fmt.Errorf("read ends of sockets: %w", err)
		}
		for len(datagram) > 0 {
			m, rest, err := nextMessage(datagram)
			if err != nil {
				lost()
				break
			}
			datagram = rest
			if m.typ != unix.SOCK_DIAG_BY_FAMILY {
				continue
			}
			switch end, ok, err := decodeEnd(m.payload); {
			case err != nil:
				lost()
			case ok:
				yield(end)
			}
		}
	}
	return nil
}

// decodeEnd decodes one report. It returns false if the report has no counters.
func decodeEnd(b []byte) (End, bool, error) {
	sock, attrs, err := decodeSocket(b)
	if err != nil {
		return End{}, false, err
	}
	for len(attrs) > 0 {
		typ, v, rest, err := nextAttr(attrs)
		if err != nil {
			return End{}, false, fmt.Errorf("decode end of socket %v: %w", sock.local, err)
		}
		attrs = rest
		if typ == diagAttrInfo {
			var m Metrics
			decodeMetrics(v, &m)
			return End{sock.local, sock.remote, m.BytesReceived, m.BytesAcked}, true, nil
		}
	}
	return End{}, false, nil
}
