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
	ID     uint64 // of the session, unique during the agent's run
	Name   string // as in its certificate
	Serial string // of that certificate
	// Key is the member's own. A renewal keeps it.
	Key    collective.PublicKey
	Issuer collective.Issuer // of that certificate
	// Addr is the session's source address, validated by QUIC. When it changes, the Handler is
	// notified before it sees the new one.
	Addr netip.Addr
	// Proof is the member's signed and verified statement for this session.
	Proof *wire.Proof
}

// Handler serves the requests of sessions. SessionUp is called before a session's first request,
// and SessionDown after the last was answered. Both delay that session only.
type Handler interface {
	// Offers returns the kinds of detours that members can have, for the greeting.
	Offers() []wire.Kind
	// Closed returns why nothing is given to any member for now, or nil. Server.Tell announces a
	// change.
	Closed() *Closed
	// Load returns whether the waypoint is loaded. Server.Tell announces a change.
	Load() Load
	SessionUp(Peer)
	SessionDown(Peer)
	// SessionMoved reports that the member's address changed from before.Addr to now.Addr. It is
	// called after all requests from the old address are answered, before any from the new one, and
	// before the client is told its new address. It delays that session only.
	SessionMoved(before, now Peer)
	// MemberLeft reports that the member has left the address from and now uses this session's
	// address. Its earlier session broke and has ended by now. It delays that session only.
	MemberLeft(now Peer, from netip.Addr)
	// Map answers one request for connections from peer.Addr. It is called concurrently, even for
	// one session. Only Port and Lease of the grant are used; the rest is filled in. ctx ends with
	// the session.
	Map(ctx context.Context, peer Peer, req wire.MapRequest) (wire.MapGrant, *wire.Refusal)
	// Tunnel answers one request of the member at peer.Addr. It is called like Map. ID, Kind and
	// Client of the grant are filled in.
	Tunnel(ctx context.Context, peer Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal)
	// Aside serves a stream that the client has opened beside its messages. Each session has at most one at a time.
	// Aside must return when ctx ends, which is when the session does.
	Aside(ctx context.Context, peer Peer, s Stream)
}

// Limits bounds the use of a waypoint by one member.
type Limits struct {
	Sessions     int        // per address family; a new one displaces the oldest
	RequestRate  rate.Limit // per second, over all sessions
	RequestBurst int
	Outstanding  int // outstanding requests, per session
}

// DefaultLimits returns limits suitable for unknown members.
func DefaultLimits() Limits {
	return Limits{Sessions: 4, RequestRate: 2000, RequestBurst: 4000, Outstanding: maxAsking}
}

func (l Limits) check() error {
	if l.Sessions < 1 || l.RequestRate <= 0 || l.RequestBurst < 1 || l.Outstanding < 1 {
		return fmt.Errorf("session limits %+v: each must be above zero", l)
	}
	return nil
}

// ServerConfig configures a Server.
type ServerConfig struct {
	Listen   string // ":45672" listens on IPv4 and IPv6
	Identity *collective.Identity
	Lease    time.Duration // of a mapping, for the greeting
	Limits   Limits
	Asides   bool // clients may open streams beside their messages
	// MappedOnly reports whether a member can have no other kind of detours than mapped ones. If it is nil, all members
	// can have what the Handler offers. Server.Tell announces a change.
	MappedOnly func(member string) bool
	Log        *slog.Logger
}

// streams returns the number of streams that a client may have open.
func (c ServerConfig) streams() int64 {
	if c.Asides {
		return 2
	}
	return 1
}

const (
	// sweepEvery bounds the time between the arrival of a revocation file and the end of a session.
	sweepEvery = 2 * time.Second
	// Above this rate, handshakes must first prove their address (Retry, RFC 9000, 8.1.2), so that
	// forged packets cost little.
	freeHandshakes      = rate.Limit(50)
	freeHandshakesBurst = 100
)

// Server accepts the sessions of members.
type Server struct {
	config    ServerConfig
	socket    *net.UDPConn
	transport *quic.Transport
	listener  *quic.Listener
	registry  *registry
	news      news          // changes to announce to members
	refusals  *rate.Limiter // limits log lines about rejected members
	sessions  sync.WaitGroup
}

// Listen opens the socket. Serve must be called next, because only it closes the socket.
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
	// Derived from the member's key, so that a restarted agent can reset the sessions of its
	// predecessor. Their clients then reconnect at once (RFC 9000, 10.3).
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
	if s.listener, err = s.transport.Listen(config.Identity.ServerTLS(alpn), quicConfig(config.streams())); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for sessions on %s/udp: %w", config.Listen, err), socket.Close())
	}
	return s, nil
}

// Addr returns the server's address.
func (s *Server) Addr() netip.AddrPort { return addrPort(s.socket.LocalAddr()) }

// service is a Server while Serve runs.
type service struct {
	*Server
	handler Handler
}

// Serve serves sessions with h until ctx ends. Then it tells every client that the agent stops, and returns when all
// sessions have ended. It may be called once.
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

// sweep ends the sessions of former members.
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

// Sweep ends the sessions of former members at once. Serve does so every 2 seconds.
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
