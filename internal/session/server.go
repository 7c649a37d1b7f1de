package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/time/rate"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// Peer is the member at the other end of a session.
type Peer struct {
	ID     uint64            // of the session, unique while the agent runs
	Name   string            // as in its certificate
	Serial string            // of that certificate
	Issuer collective.Issuer // of that certificate
	// Addr is where the session comes from, validated by QUIC. It changes when the member's address
	// does; a Handler is told before it sees another one.
	Addr netip.Addr
	// Proof is what the member has signed for this session; verified.
	Proof *wire.Proof
}

// Handler is what a waypoint does with sessions. SessionUp comes before a session's first request,
// SessionDown after its last has been answered; both delay that session only.
type Handler interface {
	// Offers are the kinds of detours a member can have, as it is greeted with.
	Offers() []wire.Kind
	// Closed is why nothing is given to anybody for now, and until when, if that is known; nil: it is.
	// Server.Tell says that it has changed.
	Closed() *Closed
	SessionUp(Peer)
	SessionDown(Peer)
	// SessionMoved says that the member has another address: now.Addr in place of before.Addr. It
	// comes after what was asked from the old one has been answered, before anything asked from the
	// new one, and before the client hears that it is seen there. It delays that session only.
	SessionMoved(before, now Peer)
	// MemberLeft says that the member, whose session broke, is no longer at the address, but where this
	// session comes from. The broken one has ended by then. It delays that session only.
	MemberLeft(now Peer, from netip.Addr)
	// Map answers one request, for connections from peer.Addr. It is called concurrently, also for
	// one session. Of the grant, Port and Lease count; the rest is filled in. ctx ends with the session.
	Map(ctx context.Context, peer Peer, req wire.MapRequest) (wire.MapGrant, *wire.Refusal)
	// Tunnel answers one request, for the member at peer.Addr, under the same terms. ID, Kind and
	// Client of the grant are filled in.
	Tunnel(ctx context.Context, peer Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal)
}

// Limits is what one member may ask of a waypoint.
type Limits struct {
	Sessions     int        // per address family; the oldest gives way to a newer one
	RequestRate  rate.Limit // a second, over all sessions
	RequestBurst int
	Outstanding  int // requests under way, per session
}

// DefaultLimits suit a waypoint that knows nothing of its members.
func DefaultLimits() Limits {
	return Limits{Sessions: 4, RequestRate: 2000, RequestBurst: 4000, Outstanding: maxAsking}
}

func (l Limits) check() error {
	if l.Sessions < 1 || l.RequestRate <= 0 || l.RequestBurst < 1 || l.Outstanding < 1 {
		return fmt.Errorf("session limits %+v: each must be above zero", l)
	}
	return nil
}

// ServerConfig is what a Server needs.
type ServerConfig struct {
	Listen   string // ":45672" is IPv4 and IPv6
	Identity *collective.Identity
	Lease    time.Duration // of a mapping, as told in the greeting
	Limits   Limits
	Log      *slog.Logger
}

const (
	// sweepEvery is how late, at most, a revocation ends a session after its file arrived.
	sweepEvery = 2 * time.Second
	// Handshakes above this rate must first prove their address (Retry, RFC 9000, 8.1.2), so that
	// forged packets cost next to nothing.
	freeHandshakes      = rate.Limit(50)
	freeHandshakesBurst = 100
)

// Server accepts sessions of members.
type Server struct {
	config    ServerConfig
	socket    *net.UDPConn
	transport *quic.Transport
	listener  *quic.Listener
	registry  *registry
	news      news          // that members are to be told
	refusals  *rate.Limiter // bounds log lines about members turned away
	sessions  sync.WaitGroup
}

// Listen opens the socket. Serve must be called next, as it also closes it.
func Listen(config ServerConfig) (*Server, error) {
	if err := config.Limits.check(); err != nil {
		return nil, err
	}
	addr, err := net.ResolveUDPAddr("udp", config.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for sessions on %q: %w; write it like \":45672\" or \"192.0.2.7:45672\"", config.Listen, err)
	}
	socket, err := net.ListenUDP("udp", addr)
	if err != nil {
		err = fmt.Errorf("listen for sessions on %s/udp: %w", config.Listen, err)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w; another agent may run here: see ss -ulpn 'sport = :%d'", err, addr.Port)
		}
		return nil, err
	}
	handshakes := rate.NewLimiter(freeHandshakes, freeHandshakesBurst)
	// From the member's key, so that after a restart the agent can still reset the sessions it has
	// forgotten, and their clients come back at once (RFC 9000, 10.3).
	resetKey := quic.StatelessResetKey(config.Identity.Derive("stateless reset"))
	s := &Server{
		config: config,
		socket: socket,
		transport: &quic.Transport{
			Conn:                socket,
			ConnectionIDLength:  connIDLength,
			StatelessResetKey:   &resetKey,
			VerifySourceAddress: func(net.Addr) bool { return !handshakes.Allow() },
		},
		registry: newRegistry(config.Limits),
		news:     news{next: make(chan struct{})},
		refusals: rate.NewLimiter(1, 10),
	}
	if s.listener, err = s.transport.Listen(config.Identity.ServerTLS(alpn), quicConfig(1)); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for sessions on %s/udp: %w", config.Listen, err), socket.Close())
	}
	return s, nil
}

// Addr is where the server listens.
func (s *Server) Addr() netip.AddrPort { return addrPort(s.socket.LocalAddr()) }

// service is a Server that serves.
type service struct {
	*Server
	handler Handler
}

// Serve has h serve sessions until ctx ends. Then it tells every client that the agent stops, and returns when
// all sessions have ended. It may be called once.
func (s *Server) Serve(ctx context.Context, h Handler) error {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	s.sessions.Go(func() { s.sweep(serving) })
	var failed error
	for {
		conn, err := s.listener.Accept(serving)
		if err != nil {
			if ctx.Err() == nil {
				failed = fmt.Errorf("accept sessions: %w", err)
			}
			break
		}
		s.sessions.Go(func() { (&service{s, h}).handle(serving, conn) })
	}
	stop()
	s.sessions.Wait()
	return errors.Join(failed, s.listener.Close(), s.transport.Close(), s.socket.Close())
}

// sweep ends sessions of members that no longer are.
func (s *Server) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.Sweep()
		s.registry.forget()
	}
}

// Sweep ends such sessions at once. Serve does so every 2 seconds.
func (s *Server) Sweep() {
	s.config.Identity.Refresh()
	for _, l := range s.registry.all() {
		if err := s.config.Identity.Check(l.member); err != nil {
			closeLine(l.conn, closeCodeOf(err), err.Error())
		}
	}
}

func closeCodeOf(err error) quic.ApplicationErrorCode {
	var revoked *collective.RevokedError
	switch {
	case errors.As(err, &revoked):
		return closeRevoked
	case errors.Is(err, collective.ErrExpired):
		return closeExpired
	}
	return closeNotMember
}
