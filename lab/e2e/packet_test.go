package e2e

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// packet is an IPv4 packet with a TCP header and nothing behind it (RFC 791, RFC 9293).
type packet struct {
	from, to netip.AddrPort
	seq      uint32
	flags    byte
	options  []byte // in whole words
}

func (p packet) bytes() []byte {
	const ip, tcp = 20, 20
	b := make([]byte, ip+tcp, ip+tcp+len(p.options))
	b = append(b, p.options...)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_TCP // the kernel fills in the checksum
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], p.from.Addr().AsSlice())
	copy(b[16:], p.to.Addr().AsSlice())
	t := b[ip:]
	binary.BigEndian.PutUint16(t, p.from.Port())
	binary.BigEndian.PutUint16(t[2:], p.to.Port())
	binary.BigEndian.PutUint32(t[4:], p.seq)
	t[12], t[13] = byte((tcp+len(p.options))/4<<4), p.flags
	binary.BigEndian.PutUint16(t[14:], 65535)
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(t))
	for _, part := range [][]byte{b[12:ip], t} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(t[16:], ^uint16(sum))
	return b
}

// readPacket is the inverse; false for what is no TCP over IPv4.
func readPacket(b []byte) (p packet, ok bool) {
	if len(b) < 40 || b[0] != 0x45 || b[9] != unix.IPPROTO_TCP {
		return p, false
	}
	t := b[20:]
	header := int(t[12]>>4) * 4
	if header < 20 || len(t) < header {
		return p, false
	}
	addr := func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }
	return packet{
		from: netip.AddrPortFrom(addr(b[12:]), binary.BigEndian.Uint16(t)),
		to:   netip.AddrPortFrom(addr(b[16:]), binary.BigEndian.Uint16(t[2:])),
		seq:  binary.BigEndian.Uint32(t[4:]), flags: t[13], options: append([]byte(nil), t[20:header]...),
	}, true
}

// sender returns a function that sends packets from a host, whatever their source.
func (w *world) sender(host string) func(packet) {
	w.Helper()
	fd := w.rawSocket(host, unix.AF_INET, unix.IPPROTO_RAW)
	return func(p packet) {
		w.Helper()
		err := unix.Sendto(fd, p.bytes(), 0, &unix.SockaddrInet4{Addr: p.to.Addr().As4()})
		if err != nil && err != unix.ENOBUFS {
			w.Fatal(err)
		}
	}
}

// listener returns a function that waits for a TCP packet that opens or resets a connection
// and comes to a host, or leaves it, or passes through it; false: there was none.
func (w *world) listener(host string) func(wanted func(packet) bool) (packet, bool) {
	w.Helper()
	// Of packets that leave only who listens to all protocols is told.
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	fd := w.rawSocket(host, unix.AF_PACKET, int(all))
	// All others would be more than waits for us.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 4},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_IND, K: 13},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: flagSYN | flagRST, Jf: 1},
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
	return func(wanted func(packet) bool) (packet, bool) {
		w.Helper()
		for began := time.Now(); time.Since(began) < patience; {
			n, _, err := unix.Recvfrom(fd, buffer, 0)
			switch {
			case err == unix.EAGAIN, err == unix.EINTR:
				continue
			case err != nil:
				w.Fatal(err)
			}
			if p, ok := readPacket(buffer[:n]); ok && wanted(p) {
				return p, true
			}
		}
		return packet{}, false
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
