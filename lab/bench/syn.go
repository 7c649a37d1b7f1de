package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/lab/testbed"
)

// synSource makes the SYNs of very many joins, as frames that the client's network card would send.
type synSource struct {
	client, next net.HardwareAddr // of both ends of the link
	from         netip.Addr
	to           netip.AddrPort
	server       netip.Addr   // named in the SYNs; invalid: they name none
	auth         *inband.Auth // nil: they prove nothing
}

const (
	synOptions = 40 // bytes: all that TCP has room for
	synSize    = 14 + 20 + 20 + synOptions

	inBandID = 0xdc01 // of the TCP option that names a server
)

// frame returns a SYN from a port. The same port and sequence number give the same SYN.
func (s synSource) frame(port uint16, seq uint32) []byte {
	const tsval = 1000
	b := make([]byte, 0, synSize)
	b = append(append(b, s.next...), s.client...)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)

	const window = 64240
	p := packet.Segment(netip.AddrPortFrom(s.from, port), s.to,
		packet.TCP{Seq: seq, Flags: packet.SYN, Window: window, Options: s.options(port, seq, tsval)}, nil)
	p.V4.Fragment = packet.DontFragment
	if err := p.Seal(); err != nil {
		panic(err) // the options always fit
	}
	return p.Append(b)
}

// options returns the options of a join as Linux writes them, and the option of an in-band detour.
func (s synSource) options(port uint16, seq, tsval uint32) []packet.Option {
	var tsecr uint32
	if s.auth != nil {
		join := inband.Join{Local: netip.AddrPortFrom(s.from, port), Remote: s.to, Server: s.server, Auth: s.auth}
		tsecr = inband.Authenticator(join, seq, tsval)
	}
	const mss, scale = 1460, 7
	all := []packet.Option{
		packet.MSS(mss), packet.SACKPermitted, packet.Timestamps(tsval, tsecr), packet.NOP, packet.WindowScale(scale),
		packet.JoinSYN{AddressID: 1, Token: 0x01020304, Nonce: 0x05060708}.Option(),
	}
	if !s.server.IsValid() {
		const room = 8 // of the option that is not there
		return append(all, slices.Repeat([]packet.Option{packet.End}, room)...)
	}
	return append(all, packet.Experiment(inBandID, s.server.AsSlice()))
}

// openPacketSocket opens a socket on a link of the client. It sends frames past the link's queue, and receives all frames
// of the link.
func (s *network) openPacketSocket(link string) (fd int, err error) {
	const everything = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in the order of the network
	l, err := s.Host(clientHost).Link(link)
	if err != nil {
		return 0, err
	}
	fd, err = testbed.On(s.Host(clientHost), func() (int, error) { return unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) })
	if err == nil {
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Protocol: everything}))
	}
	if err != nil {
		return 0, fmt.Errorf("send frames on link %s: %w", link, err)
	}
	return fd, nil
}

func (s *network) hardwareAddr(host, link string) (net.HardwareAddr, error) {
	l, err := s.Host(host).Link(link)
	if err != nil {
		return nil, err
	}
	return l.Attrs().HardwareAddr, nil
}
