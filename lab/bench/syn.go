package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
)

// synSource makes the SYNs of very many joins: frames as the client's network
// card would send them.
type synSource struct {
	client, next net.HardwareAddr // of both ends of the link
	from         netip.Addr
	to           netip.AddrPort
	server       netip.Addr   // that the SYNs name; invalid: they name none
	auth         *inband.Auth // nil: they prove nothing
}

const (
	synOptions = 40 // bytes: all that TCP has room for
	synSize    = 14 + 20 + 20 + synOptions
)

// frame is a SYN from a port. Two with the same port and sequence number are the
// same SYN.
func (s synSource) frame(port uint16, seq uint32) []byte {
	const tsval = 1000
	from, to := s.from.As4(), s.to.Addr().As4()
	b := make([]byte, 0, synSize)
	b = append(append(b, s.next...), s.client...)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)

	const version, lifetime = 0x45, 64
	b = append(b, version, 0)
	b = binary.BigEndian.AppendUint16(b, synSize-14)
	b = append(b, 0, 0, 0x40, 0, lifetime, unix.IPPROTO_TCP, 0, 0) // not to be fragmented
	b = append(append(b, from[:]...), to[:]...)
	binary.BigEndian.PutUint16(b[14+10:], ^checksum(b[14:], 0))

	tcp := len(b)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, s.to.Port())
	b = binary.BigEndian.AppendUint32(b, seq)
	const words, flagSYN, window = (20 + synOptions) / 4, 2, 64240
	b = append(b, 0, 0, 0, 0, words<<4, flagSYN)
	b = binary.BigEndian.AppendUint16(b, window)
	b = append(b, 0, 0, 0, 0)
	b = append(b, s.options(port, seq, tsval)...)
	pseudo := slices.Concat(from[:], to[:], []byte{0, unix.IPPROTO_TCP, 0, byte(len(b) - tcp)})
	binary.BigEndian.PutUint16(b[tcp+16:], ^checksum(b[tcp:], checksum(pseudo, 0)))
	return b
}

// options are those of a join as Linux writes them, with that of a detour.
func (s synSource) options(port uint16, seq, tsval uint32) []byte {
	var tsecr uint32
	if s.auth != nil {
		join := inband.Join{Local: netip.AddrPortFrom(s.from, port), Remote: s.to, Server: s.server, Auth: s.auth}
		tsecr = inband.Authenticator(join, seq, tsval)
	}
	o := append(make([]byte, 0, synOptions), 2, 4, 5, 180, 4, 2, 8, 10) // MSS 1460, SACK, timestamps
	o = binary.BigEndian.AppendUint32(o, tsval)
	o = binary.BigEndian.AppendUint32(o, tsecr)
	o = append(o, 1, 3, 3, 7)                              // window scale
	o = append(o, 30, 12, 0x10, 1, 1, 2, 3, 4, 5, 6, 7, 8) // MP_JOIN of RFC 8684, 3.2
	if s.server.IsValid() {
		server := s.server.As4()
		o = append(append(o, 254, 8, 0xdc, 0x01), server[:]...)
	}
	return o[:synOptions] // zeros end the options
}

// checksum is the sum of RFC 1071, not complemented, of an even number of bytes.
func checksum(b []byte, start uint16) uint16 {
	sum := uint32(start)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// openCannon opens a socket that sends frames on a link of the client's, past its
// queue, and sees all that pass there.
func (s *network) openCannon(link string) (fd int, err error) {
	const everything = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the order of the network
	err = s.Host(clientHost).Do(func() error {
		l, err := netlink.LinkByName(s.Host(clientHost).Interface(link))
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Protocol: everything}))
	})
	if err != nil {
		return 0, fmt.Errorf("send frames on link %s: %w", link, err)
	}
	return fd, nil
}

func (s *network) hardwareAddr(host, link string) (addr net.HardwareAddr, err error) {
	err = s.Host(host).Do(func() error {
		l, err := netlink.LinkByName(s.Host(host).Interface(link))
		if err == nil {
			addr = l.Attrs().HardwareAddr
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the interface of %s on link %s: %w", host, link, err)
	}
	return addr, nil
}
