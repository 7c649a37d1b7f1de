package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// listener is a listening socket. It is no os.File, because os.File.Fd makes a socket blocking in all processes that
// have it.
type listener struct{ fd int }

func (l *listener) close() { _ = unix.Close(l.fd) }

// handed returns the name under which a listening socket is handed over.
func handed(part, address string) string { return part + " at " + address }

// listen returns the listening socket of a part, for MPTCP and TCP: the one that the previous relay has handed over, or
// a new one.
func (r *relay) listen(part string, e entrance) (l *listener, err error) {
	name := handed(part, e.address)
	if l = r.inherited[name]; l != nil {
		delete(r.inherited, name)
	} else if l, err = open(e); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := l.takeFastOpen(e.fastOpen); err != nil && e.fastOpen {
		r.log.Warn("no data is taken in SYNs (waypoint.converter_fast_open): Linux can do that with MPTCP from 6.2 on", "listener", name, "err", err)
	}
	return l, nil
}

// open returns a new listening socket.
func open(e entrance) (*listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	if e.transparent {
		config.Control = makeTransparent
	}
	l, err := config.Listen(context.Background(), "tcp", e.address)
	if errors.Is(err, syscall.EACCES) {
		return nil, fmt.Errorf("%w: ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE, which the packaged service has; else choose a higher one", err)
	}
	if err != nil {
		return nil, err
	}
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return nil, err
	}
	own, failed := -1, error(nil)
	if err := raw.Control(func(fd uintptr) { own, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	return &listener{own}, nil
}

// fastOpenQueue bounds the connections whose SYN had data and whose handshake has not ended. The kernel also counts
// connections that were reset in the last minute by a host that had not asked for them. Data in further SYNs is ignored.
const fastOpenQueue = 256

// takeFastOpen makes a socket accept or ignore data in SYNs. To accept it, the sysctl net.ipv4.tcp_fastopen must allow
// it, too.
func (l *listener) takeFastOpen(on bool) error {
	queue := 0
	if on {
		queue = fastOpenQueue
	}
	return unix.SetsockoptInt(l.fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, queue)
}

// boundAt returns the address of a listening socket, or the zero AddrPort if it has none.
func boundAt(fd int) netip.AddrPort {
	switch sa, _ := unix.Getsockname(fd); a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// makeTransparent lets a socket of one family accept connections to any address that TPROXY leads to it.
func makeTransparent(network, _ string, c syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if network == "tcp6" {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	var set error
	err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, set)
}
