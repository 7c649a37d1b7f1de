package netstate

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Listeners lists the TCP ports on which programs of this host listen. Not safe for concurrent use.
type Listeners struct{ conn *netlink.Conn }

// OpenListeners opens a handle on the calling thread's network namespace.
func OpenListeners() (*Listeners, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	return &Listeners{conn: conn}, nil
}

// Close releases the handle.
func (l *Listeners) Close() error { return l.conn.Close() }

const (
	tcpListen       = 10 // TCP_LISTEN of include/net/tcp_states.h
	inetDiagReqSize = 56 // struct inet_diag_req_v2
	inetDiagMsgSize = 72 // struct inet_diag_msg
)

// TCP returns the addresses and ports of TCP listeners, including MPTCP ones.
func (l *Listeners) TCP() ([]netip.AddrPort, error) {
	var found []netip.AddrPort
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		req := make([]byte, inetDiagReqSize)
		req[0], req[1] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(req[4:], 1<<tcpListen)
		replies, err := l.conn.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump},
			Data:   req,
		})
		if err != nil {
			return nil, fmt.Errorf("list TCP listeners: %w", err)
		}
		for _, m := range replies {
			if addr, ok := decodeListener(m.Data); ok {
				found = append(found, addr)
			}
		}
	}
	return found, nil
}

// decodeListener reads the local side of a struct inet_diag_msg.
func decodeListener(b []byte) (netip.AddrPort, bool) {
	if len(b) < inetDiagMsgSize {
		return netip.AddrPort{}, false
	}
	port := binary.BigEndian.Uint16(b[4:])
	switch b[0] {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[8:12])), port), true
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port), true
	}
	return netip.AddrPort{}, false
}
