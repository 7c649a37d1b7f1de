package netstate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// PathMTU returns the size in bytes of the largest unfragmented IP packet to dst that the kernel knows to fit: the MTU
// of the route and interface, or less if ICMP reported less.
func PathMTU(dst netip.Addr) (int, error) {
	s, err := openProbe(netip.AddrPortFrom(dst, discardPort))
	if err != nil {
		return 0, fmt.Errorf("find the path MTU to %v: %w", dst, err)
	}
	defer s.close()
	mtu, err := s.mtu()
	if err != nil {
		return 0, fmt.Errorf("find the path MTU to %v: %w", dst, err)
	}
	return mtu, nil
}

// ProbePathMTU makes the kernel learn the path MTU to dst, and returns it. It sends the largest possible UDP packets,
// of zeros, that must not be fragmented. A router that cannot forward one reports that. ProbePathMTU takes wait for
// each smaller link that it finds, and wait once more. wait should be a round trip. Answers are ignored. dst should be
// a port that ignores the packets, such as a tunnel's. If ICMP is blocked, the result is the MTU of the first link.
func ProbePathMTU(ctx context.Context, dst netip.AddrPort, wait time.Duration) (int, error) {
	s, err := openProbe(dst)
	if err != nil {
		return 0, fmt.Errorf("probe the path MTU to %v: %w", dst, err)
	}
	defer s.close()
	mtu, err := s.probe(ctx, wait)
	if err != nil {
		return 0, fmt.Errorf("probe the path MTU to %v: %w", dst, err)
	}
	return mtu, nil
}

// discardPort (RFC 863) is the destination of a socket that sends nothing. The socket must be connected to have a
// route.
const discardPort = 9

// probe is a connected UDP socket that sends unfragmented packets only.
type probe struct {
	fd  int
	is4 bool
}

func openProbe(dst netip.AddrPort) (probe, error) {
	is4 := dst.Addr().Unmap().Is4()
	family := unix.AF_INET6
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: dst.Addr().As16(), Port: int(dst.Port())}
	if is4 {
		family = unix.AF_INET
		to = &unix.SockaddrInet4{Addr: dst.Addr().Unmap().As4(), Port: int(dst.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return probe{}, fmt.Errorf("open a UDP socket: %w", err)
	}
	s := probe{fd: fd, is4: is4}
	if err := errors.Join(s.onlyWhole(), unix.Connect(fd, to)); err != nil {
		s.close()
		return probe{}, fmt.Errorf("open a UDP socket: %w", err)
	}
	return s, nil
}

func (s probe) close() { _ = unix.Close(s.fd) }

func (s probe) onlyWhole() error {
	if s.is4 {
		return unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}
	return unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
}

func (s probe) mtu() (int, error) {
	if s.is4 {
		return unix.GetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_MTU)
	}
	return unix.GetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
}

func (s probe) probe(ctx context.Context, wait time.Duration) (int, error) {
	headers := 20 + 8
	if !s.is4 {
		headers = 40 + 8
	}
	for {
		mtu, err := s.mtu()
		if err != nil {
			return 0, err
		}
		// The error belongs to an earlier packet, or is EMSGSIZE because the path's MTU has decreased in the meantime.
		if err := unix.Send(s.fd, make([]byte, min(mtu, 1<<16-1)-headers), 0); err != nil && !errors.Is(err, unix.EMSGSIZE) {
			return 0, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, ctx.Err()
		}
		now, err := s.mtu()
		if err != nil || now >= mtu {
			return now, err
		}
	}
}
