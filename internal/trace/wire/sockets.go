package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/packet"
)

// sockets are raw sockets of one IP version: one that sends, and one for each protocol that is heard.
type sockets struct {
	six     bool
	out     int
	in      []input
	readers atomic.Int32 // that run
}

// input is a socket that hears a protocol.
type input struct {
	file     *os.File
	protocol int
}

// maxPacket is the size of the largest IP packet in bytes.
const maxPacket = 65535

// buffers are for packets that are being read. All sockets share them, so that waiting sockets need none.
var buffers = sync.Pool{New: func() any { return new([maxPacket]byte) }}

// icmpOf returns the protocol number of ICMP.
func icmpOf(six bool) int {
	if six {
		return unix.IPPROTO_ICMPV6
	}
	return unix.IPPROTO_ICMP
}

// openSockets opens sockets. device, if it is not empty, is the interface to use. prepare is called for each socket that
// hears a protocol, before anything is read from it.
func openSockets(six bool, device string, protocols []int, prepare func(fd, protocol int) error) (_ *sockets, err error) {
	s := &sockets{six: six, out: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.out, err = s.socket(unix.IPPROTO_RAW, device); err != nil {
		return nil, err
	}
	for _, protocol := range protocols {
		fd, err := s.socket(protocol, device)
		if err != nil {
			return nil, err
		}
		s.in = append(s.in, input{os.NewFile(uintptr(fd), "raw"), protocol})
		makeRoom(fd)
		if err := prepare(fd, protocol); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// makeRoom gives a socket room for a burst of answers. Without CAP_NET_ADMIN the kernel may grant less.
func makeRoom(fd int) {
	const room = 4 << 20 // bytes
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
}

func (s *sockets) socket(protocol int, device string) (fd int, err error) {
	family := unix.AF_INET
	if s.six {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return -1, ErrRight
	case err != nil:
		return -1, fmt.Errorf("open a raw socket: %w", err)
	}
	if device == "" {
		return fd, nil
	}
	if err := unix.BindToDevice(fd, device); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("use interface %s: %w", device, err)
	}
	return fd, nil
}

// send sends an IP packet with its header.
func (s *sockets) send(b []byte, destination netip.Addr) error {
	for range 50 {
		err := unix.Sendto(s.out, b, 0, sockaddr(destination))
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			return err
		}
		time.Sleep(time.Millisecond) // the device's queue is full
	}
	return unix.ENOBUFS
}

// read calls take with each packet that arrives. take may use the packet until it returns. Each protocol has a
// goroutine. The goroutines end with close, and the last one calls ended.
func (s *sockets) read(take func(b []byte, from netip.Addr, protocol int), ended func()) {
	s.readers.Store(int32(len(s.in)))
	for _, in := range s.in {
		go func() {
			in.read(take)
			if s.readers.Add(-1) == 0 {
				ended()
			}
		}()
	}
}

func (in input) read(take func(b []byte, from netip.Addr, protocol int)) {
	raw, err := in.file.SyscallConn()
	for err == nil { // until it is closed
		err = raw.Read(func(fd uintptr) bool {
			buffer := buffers.Get().(*[maxPacket]byte)
			defer buffers.Put(buffer)
			// Other errors are of the destination, such as a refused connection, and are reported once.
			n, from, failure := unix.Recvfrom(int(fd), buffer[:], 0)
			if failure == nil {
				take(buffer[:n], addrOf(from), in.protocol)
			}
			return !errors.Is(failure, unix.EAGAIN)
		})
	}
}

// whole copies a packet from a reader. IPv6's raw sockets deliver none of its header.
func (s *sockets) whole(b []byte, from, to netip.Addr, protocol int) []byte {
	if !s.six {
		return append([]byte(nil), b...)
	}
	h := packet.IPv6{Length: uint16(len(b)), NextHeader: uint8(protocol), HopLimit: 64, Src: from, Dst: to}
	return (&packet.Packet{V6: &h, Payload: b}).Bytes()
}

// setReceiver completes a packet from whole whose receiver was not known yet. IPv4's raw sockets deliver the header with it.
func (s *sockets) setReceiver(whole []byte, to netip.Addr) {
	if s.six {
		copy(whole[24:40], to.AsSlice())
	}
}

func (s *sockets) close() error {
	var errs []error
	for _, in := range s.in {
		errs = append(errs, in.file.Close())
	}
	if s.out >= 0 {
		errs = append(errs, unix.Close(s.out))
	}
	return errors.Join(errs...)
}

// sourceTo returns the address that the kernel uses towards a destination.
func sourceTo(destination netip.Addr, device string) (netip.Addr, error) {
	own, err := routeTo(destination, device)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no route to %v: %w", destination, err)
	}
	return own, nil
}

func routeTo(destination netip.Addr, device string) (netip.Addr, error) {
	family := unix.AF_INET
	if !destination.Is4() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if device != "" {
		if err := unix.BindToDevice(fd, device); err != nil {
			return netip.Addr{}, fmt.Errorf("use interface %s: %w", device, err)
		}
	}
	to := sockaddr(destination)
	setPort(to, 9)
	if err := unix.Connect(fd, to); err != nil {
		return netip.Addr{}, err
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrOf(own), nil
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

func setPort(a unix.Sockaddr, port int) {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		a.Port = port
	case *unix.SockaddrInet6:
		a.Port = port
	}
}

func addrOf(a unix.Sockaddr) netip.Addr {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}
