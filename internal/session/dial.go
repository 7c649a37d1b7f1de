package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// outgoing is a session after the greetings.
type outgoing struct {
	socket    *clientSocket
	transport *quic.Transport
	conn      *quic.Conn
	// departures follows what becomes of our packets.
	departures *departureTrace
	stream     *quic.Stream
	decoder    *wire.Decoder
	member     collective.Member // the waypoint
	hello      wire.Hello        // its greeting
	local      netip.Addr        // source address of our packets
	// attestation is sent with the first request.
	attestation wire.Attestation
}

func (o *outgoing) close() {
	o.transport.Close()
	o.socket.Close()
}

// dial opens a session. On failure, heard reports whether any packet arrived.
func dial(ctx context.Context, config ClientConfig) (o *outgoing, heard bool, err error) {
	config.Identity.Refresh()
	if err := config.Identity.Usable(); err != nil {
		return nil, false, &Problem{Code: OwnIdentity, Text: err.Error(), Err: err}
	}
	local, err := localFor(config.Addr)
	if err != nil {
		return nil, false, err
	}
	// Each session has a socket of its own, for one address family, bound to no address.
	network := "udp6"
	if config.Addr.Addr().Is4() {
		network = "udp4"
	}
	udp, err := net.ListenUDP(network, nil)
	if err != nil {
		return nil, false, fmt.Errorf("open a socket: %w", err)
	}
	if config.Way != nil {
		if err := config.Way(ctx, udp, config.Addr); err != nil {
			udp.Close()
			return nil, false, &Problem{Code: NoWay, Text: fmt.Sprintf("hole punching towards %s at %v/udp failed: %v", config.Name, config.Addr, err), Err: err}
		}
	}
	socket := &clientSocket{UDPConn: udp, batch: ipv4.NewPacketConn(udp)}
	o = &outgoing{socket: socket, transport: &quic.Transport{Conn: socket, ConnectionIDLength: connIDLength}, departures: newDepartureTrace(), local: local}
	if err := o.connect(ctx, config); err != nil {
		o.close()
		return nil, socket.received.Load(), err
	}
	return o, true, nil
}

func (o *outgoing) connect(ctx context.Context, config ClientConfig) error {
	var err error
	traced := quicConfig(-1)
	traced.Tracer = o.departures.tracer
	o.conn, err = o.transport.Dial(ctx, net.UDPAddrFromAddrPort(config.Addr), config.Identity.ClientTLS(alpn, config.Name), traced)
	if err != nil {
		return err
	}
	if err := o.greet(config.Identity); err != nil {
		// A refusal's reason arrives after the handshake, on the connection.
		if cause := context.Cause(o.conn.Context()); cause != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		closeLine(o.conn, closeDone, "")
		return err
	}
	o.socket.inUse.Store(true)
	return nil
}

// greet exchanges the first messages. Only then is it certain that the waypoint accepts our
// certificate.
func (o *outgoing) greet(identity *collective.Identity) (err error) {
	if o.member, err = identity.Peer(o.conn.ConnectionState().TLS); err != nil {
		return err
	}
	if o.stream, err = o.conn.OpenStream(); err != nil {
		return fmt.Errorf("open the stream of the session: %w", err)
	}
	if err := o.stream.SetDeadline(time.Now().Add(greetTimeout)); err != nil {
		return err
	}
	frame, err := wire.Append(nil, wire.Hello{Version: wire.Version})
	if err != nil {
		return err
	}
	if _, err := o.stream.Write(frame); err != nil {
		return fmt.Errorf("send the greeting: %w", err)
	}
	o.decoder = wire.NewDecoder(o.stream)
	m, err := o.decoder.Next()
	if err != nil {
		return fmt.Errorf("read the greeting: %w", err)
	}
	hello, ok := m.(wire.Hello)
	if !ok || !hello.Observed.IsValid() {
		return fmt.Errorf("%w: the first message was not a greeting", wire.ErrFraming)
	}
	if hello.Version != wire.Version {
		return &Problem{Code: OtherVersion, Text: fmt.Sprintf("%s speaks version %d, we speak %d", o.member.Name, hello.Version, wire.Version), Fix: "update the older of the two agents"}
	}
	if hello.Session.IsZero() {
		return fmt.Errorf("%w: the greeting does not name the session", wire.ErrFraming)
	}
	o.hello, o.attestation = hello, attest(identity, o.member.Name, hello.Session, time.Now())
	return o.stream.SetDeadline(time.Time{})
}

// localFor returns the source address that the kernel uses for packets to dst. Connecting a UDP
// socket sends no packet.
func localFor(dst netip.AddrPort) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(dst))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the route to %v: %w", dst, err)
	}
	defer conn.Close()
	return addrPort(conn.LocalAddr()).Addr(), nil
}

// clientSocket records whether anything is received, because QUIC does not distinguish a waypoint
// that does not answer from one that sends invalid packets. It also treats packets that cannot be
// sent as lost: a host that changes its address has none for a moment, which must not end its
// sessions.
type clientSocket struct {
	*net.UDPConn
	batch    *ipv4.PacketConn
	received atomic.Bool
	inUse    atomic.Bool // used by a session, not only by an attempt
}

// ReadBatch is called by quic-go to read.
func (s *clientSocket) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	n, err := s.batch.ReadBatch(ms, flags)
	if n > 0 {
		s.received.Store(true)
	}
	return n, err
}

// WriteMsgUDP is called by quic-go to write.
func (s *clientSocket) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	n, oobn, err = s.UDPConn.WriteMsgUDP(b, oob, addr)
	if err != nil && s.inUse.Load() && isUnreachable(err) {
		return len(b), len(oob), nil
	}
	return n, oobn, err
}

func isUnreachable(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EADDRNOTAVAIL, syscall.EPERM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
