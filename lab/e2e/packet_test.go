package e2e

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/packet"
)

// segment is an IPv4 packet with a TCP header and nothing behind it.
type segment struct {
	from, to netip.AddrPort
	seq      uint32
	flags    packet.Flags
	options  []byte // in whole words
}

func (s segment) bytes() ([]byte, error) {
	p := packet.Segment(s.from, s.to, packet.TCP{Seq: s.seq, Flags: s.flags, Window: 65535, Rest: s.options}, nil)
	err := p.Seal()
	return p.Bytes(), err
}

// readSegment returns the inverse; false for what is no TCP over IPv4.
func readSegment(b []byte) (s segment, ok bool) {
	p, err := packet.Parse(b)
	if err != nil || p.V4 == nil || p.TCP == nil {
		return s, false
	}
	return segment{from: p.From(), to: p.To(), seq: p.TCP.Seq, flags: p.TCP.Flags, options: p.TCP.OptionBytes()}, true
}

// sender returns a function that sends packets with any source address from a host.
func (w *world) sender(host string) func(segment) {
	w.Helper()
	fd := w.rawSocket(host, unix.AF_INET, unix.IPPROTO_RAW)
	return func(p segment) {
		w.Helper()
		b, err := p.bytes()
		if err != nil {
			w.Fatal(err)
		}
		err = unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: p.to.Addr().As4()})
		if err != nil && err != unix.ENOBUFS {
			w.Fatal(err)
		}
	}
}

// listener returns a function that waits for a TCP packet with SYN or RST that a host receives, sends or
// forwards. It returns false if there was none.
func (w *world) listener(host string) func(wanted func(segment) bool) (segment, bool) {
	w.Helper()
	// The kernel shows outgoing packets only to sockets that listen to all protocols.
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	fd := w.rawSocket(host, unix.AF_PACKET, int(all))
	// All others would be more than waits for us.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 4},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: 13},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: uint32(packet.SYN | packet.RST), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	err := errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
	if err != nil {
		w.Fatal(err)
	}
	buffer := make([]byte, 1<<16)
	return func(wanted func(segment) bool) (segment, bool) {
		w.Helper()
		for began := time.Now(); time.Since(began) < patience; {
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			switch {
			case err == unix.EAGAIN, err == unix.EINTR:
				continue
			case err != nil:
				w.Fatal(err)
			}
			if p, ok := readSegment(buffer[:n]); ok && wanted(p) {
				return p, true
			}
		}
		return segment{}, false
	}
}

// rawSocket opens a socket of raw IPv4, or of packets without their link's header.
func (w *world) rawSocket(host string, family, protocol int) (fd int) {
	w.Helper()
	kind := unix.SOCK_RAW
	if family == unix.AF_PACKET {
		kind = unix.SOCK_DGRAM
	}
	err := w.host(host).Do(func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { unix.Close(fd) })
	return fd
}
