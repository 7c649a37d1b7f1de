package twin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/testbed"
)

// duplex is one end of a connection.
type duplex interface {
	syscall.Conn
	Read([]byte) (int, error)
	Write([]byte) (int, error)
	CloseWrite() error
	Close() error
}

// socket is a stream socket of a host.
type socket struct{ *os.File }

// fellBack reports whether an end has an MPTCP socket that became plain TCP. Such a socket has no MPTCP_INFO.
func fellBack(conn duplex) (plain bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		protocol, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL)
		_, noInfo := unix.GetsockoptInt(int(fd), unix.SOL_MPTCP, mptcpInfo)
		plain = err == nil && protocol == unix.IPPROTO_MPTCP && noInfo != nil
	})
	return err == nil && plain
}

const mptcpInfo = 1 // linux/mptcp.h

// dial connects a socket of the host, of MPTCP or plain TCP. The host's thread only creates the socket: it does not
// wait for the connection.
func dial(ctx context.Context, h *testbed.Host, to netip.AddrPort, mptcp bool) (*socket, error) {
	fd, err := newSocket(h, to.Addr(), mptcp)
	if err != nil {
		return nil, err
	}
	s := &socket{os.NewFile(uintptr(fd), "connection")}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.connect(to); err != nil {
		s.Close()
		return nil, fmt.Errorf("connect to %v: %w", to, err)
	}
	return s, nil
}

func newSocket(h *testbed.Host, to netip.Addr, mptcp bool) (fd int, err error) {
	family, protocol := unix.AF_INET, unix.IPPROTO_TCP
	if to.Is6() {
		family = unix.AF_INET6
	}
	if mptcp {
		protocol = unix.IPPROTO_MPTCP
	}
	fd, err = testbed.On(h, func() (int, error) {
		return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	})
	if err != nil {
		return -1, fmt.Errorf("open a socket on %s: %w", h.Name(), err)
	}
	return fd, nil
}

func (s *socket) connect(to netip.AddrPort) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	started, failed := false, error(nil)
	err = raw.Write(func(fd uintptr) bool {
		if !started {
			started = true
			failed = unix.Connect(int(fd), sockaddr(to))
			return !errors.Is(failed, unix.EINPROGRESS)
		}
		failed = nil
		if code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err != nil {
			failed = err
		} else if code != 0 {
			failed = unix.Errno(code)
		}
		return true
	})
	return errors.Join(err, failed)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// local returns the socket's local address.
func (s *socket) local() (local netip.AddrPort, err error) {
	err = s.control(func(fd int) error {
		sa, err := unix.Getsockname(fd)
		switch a := sa.(type) {
		case *unix.SockaddrInet4:
			local = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
		case *unix.SockaddrInet6:
			local = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
		}
		return err
	})
	return local, err
}

// CloseWrite shuts the writing side down.
func (s *socket) CloseWrite() error {
	return s.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}

func (s *socket) control(f func(fd int) error) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	failed := error(nil)
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

// dialByProxy asks a SOCKS5 proxy of the host to connect to an address (RFC 1928).
func dialByProxy(ctx context.Context, h *testbed.Host, proxy, to netip.AddrPort) (*socket, error) {
	s, err := dial(ctx, h, proxy, false)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	const (
		version, noAuthentication, connect, ipv4 = 5, 0, 1, 1
		succeeded                                = 0
	)
	addr := to.Addr().As4()
	request := append([]byte{version, connect, 0, ipv4}, addr[:]...)
	request = binary.BigEndian.AppendUint16(request, to.Port())
	for _, step := range []struct {
		say    []byte
		answer int // bytes
	}{{[]byte{version, 1, noAuthentication}, 2}, {request, len(request)}} {
		answer := make([]byte, step.answer)
		_, err := s.Write(step.say)
		if err == nil {
			_, err = io.ReadFull(s, answer)
		}
		if err == nil && answer[1] != succeeded {
			err = fmt.Errorf("it answers %v", answer)
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("connect to %v by the proxy: %w", to, err)
		}
	}
	return s, nil
}

// listen listens on a port of the host, for plain TCP and perhaps for MPTCP.
func listen(h *testbed.Host, port uint16, mptcp bool) (net.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(mptcp)
	network := "tcp4"
	if h.Addr().Is6() {
		network = "tcp6"
	}
	l, err := testbed.On(h, func() (net.Listener, error) {
		return lc.Listen(context.Background(), network, fmt.Sprintf(":%d", port))
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", h.Name(), err)
	}
	return l, nil
}
