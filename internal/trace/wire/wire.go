// Package wire sends probes and receives the answers, by raw sockets. It needs CAP_NET_RAW.
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
	"github.com/detour-collective/dcol/internal/trace"
)

// Conn sends packets to one destination and hears those from it, and all ICMP errors. It is a trace.Network.
type Conn struct {
	destination netip.Addr
	source      netip.Addr
	out         int
	in          []*os.File
	arrivals    chan trace.Arrival
	readers     atomic.Int32 // that run; the last one closes arrivals
	quit        chan struct{}
	once        sync.Once
	alone       bool // errors about other destinations are not heard
}

// ErrRight means that the process may not use raw sockets.
var ErrRight = errors.New("raw sockets need root or CAP_NET_RAW: run the command with sudo")

// backlog bounds the arrivals that nobody has taken yet. What exceeds it is lost, as in a socket's buffer. Of a socket
// that hears only its own destination, it has room for three answers to each probe of a trace.
const (
	backlog      = 4096
	backlogAlone = 128
)

// maxPacket is the size of the largest IP packet in bytes.
const maxPacket = 65535

// buffers are for packets that are being read. All sockets share them, so that a thousand sockets that wait need none.
var buffers = sync.Pool{New: func() any { return new([maxPacket]byte) }}

// Open opens the sockets. device, if it is not empty, is the interface to use.
func Open(destination netip.Addr, device string) (*Conn, error) {
	return open(destination, device, false)
}

// OpenOnly opens sockets that hear no ICMP errors about packets to other destinations, so that a thousand traces at a
// time do not hear each other's. Errors that quote a destination which a box has translated are not heard, either.
func OpenOnly(destination netip.Addr, device string) (*Conn, error) {
	return open(destination, device, true)
}

func open(destination netip.Addr, device string, alone bool) (*Conn, error) {
	source, err := sourceTo(destination, device)
	if err != nil {
		return nil, fmt.Errorf("no route to %v: %w", destination, err)
	}
	room := backlog
	if alone {
		room = backlogAlone
	}
	c := &Conn{
		destination: destination, source: source, out: -1, alone: alone,
		arrivals: make(chan trace.Arrival, room), quit: make(chan struct{}),
	}
	if err := c.open(device); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.readers.Store(int32(len(c.in)))
	for i, f := range c.in {
		go c.read(f, c.protocols()[i])
	}
	return c, nil
}

// protocols are those that are heard. ICMP is the first.
func (c *Conn) protocols() []int {
	if c.destination.Is4() {
		return []int{unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP}
	}
	return []int{unix.IPPROTO_ICMPV6, unix.IPPROTO_TCP, unix.IPPROTO_UDP}
}

func (c *Conn) family() int {
	if c.destination.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (c *Conn) open(device string) (err error) {
	if c.out, err = c.socket(unix.IPPROTO_RAW, device); err != nil {
		return err
	}
	for i, protocol := range c.protocols() {
		fd, err := c.socket(protocol, device)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "raw")
		c.in = append(c.in, f)
		// A burst of answers must find room. The kernel may grant less.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
		if i == 0 { // errors come from anywhere
			if c.alone {
				if err := hearOnly(fd, c.destination); err != nil {
					return err
				}
			}
			continue
		}
		if err := unix.Connect(fd, sockaddr(c.destination)); err != nil {
			return fmt.Errorf("hear only %v: %w", c.destination, err)
		}
	}
	return nil
}

func (c *Conn) socket(protocol int, device string) (fd int, err error) {
	fd, err = unix.Socket(c.family(), unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
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

// sourceTo returns the address that the kernel uses towards a destination.
func sourceTo(destination netip.Addr, device string) (netip.Addr, error) {
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

// Source returns the address from which probes come.
func (c *Conn) Source() netip.Addr { return c.source }

// Send sends an IP packet with its header.
func (c *Conn) Send(b []byte) error {
	for range 50 {
		err := unix.Sendto(c.out, b, 0, sockaddr(c.destination))
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			return err
		}
		time.Sleep(time.Millisecond) // the device's queue is full
	}
	return unix.ENOBUFS
}

// Arrivals delivers the packets that come back.
func (c *Conn) Arrivals() <-chan trace.Arrival { return c.arrivals }

func (c *Conn) read(f *os.File, protocol int) {
	defer func() {
		if c.readers.Add(-1) == 0 {
			close(c.arrivals)
		}
	}()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	for {
		var b []byte
		err := raw.Read(func(fd uintptr) bool {
			buffer := buffers.Get().(*[maxPacket]byte)
			defer buffers.Put(buffer)
			n, from, failure := unix.Recvfrom(int(fd), buffer[:], 0)
			if failure == nil {
				b = c.withHeader(buffer[:n], from, protocol)
			}
			return !errors.Is(failure, unix.EAGAIN)
		})
		if err != nil {
			return // closed
		}
		if b == nil {
			continue // an error of the destination, such as a refused connection, is reported once
		}
		at := time.Now()
		select {
		case c.arrivals <- trace.Arrival{At: at, Bytes: b}:
		case <-c.quit:
			return
		default:
		}
	}
}

// withHeader copies a packet. IPv6's raw sockets deliver none of its header.
func (c *Conn) withHeader(b []byte, from unix.Sockaddr, protocol int) []byte {
	if c.destination.Is4() {
		return append([]byte(nil), b...)
	}
	h := packet.IPv6{Length: uint16(len(b)), NextHeader: uint8(protocol), HopLimit: 64, Src: addrOf(from), Dst: c.source}
	return (&packet.Packet{V6: &h, Payload: b}).Bytes()
}

// Close closes the sockets.
func (c *Conn) Close() error {
	var errs []error
	c.once.Do(func() {
		close(c.quit)
		for _, f := range c.in {
			errs = append(errs, f.Close())
		}
		if c.out >= 0 {
			errs = append(errs, unix.Close(c.out))
		}
	})
	return errors.Join(errs...)
}
