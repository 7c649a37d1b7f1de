package experiment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/testbed"
)

// closedSockets reads the last counters of a host's TCP sockets when the sockets are destroyed (sock_diag(7), like ss
// -E). Without them, data moved after the last sample would be missed. For a short connection that is all its data.
type closedSockets struct{ fd int }

const (
	// Multicast groups of sock_diag, include/uapi/linux/sock_diag.h: the ends of TCP sockets over IPv4 and over IPv6.
	tcpEnds  = 1
	tcp6Ends = 3

	closedSocketsBuffer = 1 << 20 // bytes; enough for thousands of sockets between two looks
	diagInfo            = 2       // INET_DIAG_INFO, include/uapi/linux/inet_diag.h
)

// openClosedSockets subscribes to the ends of TCP sockets on the host.
func openClosedSockets(h *testbed.Host) (o *closedSockets, err error) {
	err = h.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_INET_DIAG)
		if err != nil {
			return err
		}
		groups := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1<<(tcpEnds-1) | 1<<(tcp6Ends-1)}
		err = errors.Join(unix.Bind(fd, groups), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, closedSocketsBuffer))
		if err != nil {
			unix.Close(fd)
			return err
		}
		o = &closedSockets{fd}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to the ends of sockets on %s: %w", h.Name(), err)
	}
	return o, nil
}

func (o *closedSockets) close() { unix.Close(o.fd) }

// each yields the sockets that have ended since the last call.
func (o *closedSockets) each(yield func(closedSocket) error) error {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(o.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR):
			continue // some messages were dropped; for their sockets, the last sample counts
		case err != nil:
			return fmt.Errorf("read the ends of sockets: %w", err)
		}
		found, err := parseClosedSockets(buf[:n])
		if err != nil {
			return err
		}
		for _, one := range found {
			if err := yield(one); err != nil {
				return err
			}
		}
	}
}

// closedSocket is a socket that has ended.
type closedSocket struct {
	id   netlink.SocketID
	info unix.TCPInfo
}

// inetDiagMsg is the beginning of struct inet_diag_msg, up to the last field that is used here.
type inetDiagMsg struct {
	Family, State, Timer, Retrans     uint8
	SourcePort, DestinationPort       [2]byte // in network order
	Source, Destination               [16]byte
	Interface                         uint32
	Cookie                            [2]uint32
	Expires, Rqueue, Wqueue, UID, Ino uint32
}

// parseClosedSockets reads netlink messages and skips those without TCP's counters.
func parseClosedSockets(data []byte) ([]closedSocket, error) {
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return nil, fmt.Errorf("read the ends of sockets: %w", err)
	}
	var out []closedSocket
	for _, message := range messages {
		var m inetDiagMsg
		size, err := binary.Decode(message.Data, binary.NativeEndian, &m)
		if err != nil {
			return nil, fmt.Errorf("read the end of a socket: %w", err)
		}
		length := net.IPv6len
		if m.Family == unix.AF_INET {
			length = net.IPv4len
		}
		one := closedSocket{id: netlink.SocketID{
			Source: m.Source[:length], Destination: m.Destination[:length], DestinationPort: binary.BigEndian.Uint16(m.DestinationPort[:]), Cookie: m.Cookie,
		}}
		attributes, err := nl.ParseRouteAttr(message.Data[size:])
		if err != nil {
			return nil, fmt.Errorf("read the end of a socket: %w", err)
		}
		for _, a := range attributes {
			if a.Attr.Type == diagInfo { // an older kernel's is shorter: the rest stays zero
				copy(unsafe.Slice((*byte)(unsafe.Pointer(&one.info)), unsafe.Sizeof(one.info)), a.Value)
				out = append(out, one)
			}
		}
	}
	return out, nil
}
