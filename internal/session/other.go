package session

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// ReadOther waits for a packet on the sessions' port that is not QUIC, such as STUN: the upper bits
// of its first byte belong to neither QUIC header (RFC 9443). Only a few such packets are queued.
// There may be one reader. The error is net.ErrClosed once the server has ended.
func (s *Server) ReadOther(ctx context.Context, b []byte) (n int, from netip.AddrPort, err error) {
	n, addr, err := s.transport.ReadNonQUICPacket(ctx, b)
	switch {
	case ctx.Err() != nil:
		return 0, netip.AddrPort{}, ctx.Err()
	case err != nil: // the only other reason
		return 0, netip.AddrPort{}, fmt.Errorf("read at %v/udp: %w", s.Addr(), net.ErrClosed)
	}
	return n, addrPort(addr), nil
}

// WriteOther sends a packet from the sessions' port.
func (s *Server) WriteOther(b []byte, to netip.AddrPort) error {
	if _, err := s.transport.WriteTo(b, net.UDPAddrFromAddrPort(to)); err != nil {
		return fmt.Errorf("send to %v/udp: %w", to, err)
	}
	return nil
}
