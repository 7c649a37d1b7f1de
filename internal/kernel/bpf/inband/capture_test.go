package inband

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/packet"
)

// segment is a TCP segment that came in over IPv4.
type segment struct {
	from, to netip.AddrPort
	seq      uint32
	flags    packet.Flags
	options  []byte
	parsed   parsed
}

// detour is the server the segment's option names, if it has exactly one option.
func (s segment) detour() netip.Addr {
	if s.parsed.detours != 1 || s.parsed.broken {
		return netip.Addr{}
	}
	return s.parsed.server
}

// timestamps of the segment, which must have some.
func (s segment) timestamps(t testing.TB) (tsval, tsecr uint32) {
	t.Helper()
	if s.parsed.timestamps != 1 {
		t.Fatalf("no timestamps among options %x", s.options)
	}
	at := s.options[s.parsed.tsvalAt:]
	return binary.BigEndian.Uint32(at), binary.BigEndian.Uint32(at[4:])
}

// capture is the segments that come in to a network namespace, from now on.
type capture struct{ fd int }

func newCapture(t testing.TB, ns *netnstest.NS) *capture {
	t.Helper()
	c := &capture{}
	ns.Must(t, func() (err error) {
		protocol := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP)))
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return err
		}
		return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
	t.Cleanup(func() { unix.Close(c.fd) })
	return c
}

// next is the next segment for which match holds; it skips the others.
func (c *capture) next(t testing.TB, what string, match func(segment) bool) segment {
	t.Helper()
	buffer := make([]byte, 65536)
	deadline := time.Now().Add(20 * time.Second)
	for {
		n, _, err := unix.Recvfrom(c.fd, buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			if time.Now().After(deadline) {
				t.Fatalf("no segment: %s", what)
			}
		case err != nil:
			t.Fatal(err)
		default:
			if s, ok := parseSegment(buffer[:n]); ok && match(s) {
				return s
			}
		}
	}
}

// syn is the next first SYN between two ports; port 0 is any.
func (c *capture) syn(t testing.TB, from, to uint16) segment {
	t.Helper()
	return c.next(t, "a SYN", func(s segment) bool {
		return s.flags&(packet.SYN|packet.ACK) == packet.SYN && (from == 0 || s.from.Port() == from) && s.to.Port() == to
	})
}

func parseSegment(ip []byte) (s segment, ok bool) {
	p, err := packet.Parse(ip)
	if err != nil || p.TCP == nil {
		return s, false
	}
	options := p.TCP.OptionBytes()
	return segment{from: p.From(), to: p.To(), seq: p.TCP.Seq, flags: p.TCP.Flags, options: options, parsed: parse(options)}, true
}

func indexOf(t testing.TB, ns *netnstest.NS, name string) int {
	t.Helper()
	index := 0
	ns.Must(t, func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			index = link.Attrs().Index
		}
		return err
	})
	return index
}
