package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// ending is why the waypoint ends a session.
type ending struct {
	code quic.ApplicationErrorCode
	text string
}

// handle is the life of one session, from the finished handshake on.
func (s *Server) handle(ctx context.Context, conn *quic.Conn) {
	member, err := s.config.Identity.Peer(conn.ConnectionState().TLS)
	if err != nil {
		closeLine(conn, closeCodeOf(err), err.Error())
		if s.refusals.Allow() {
			s.config.Log.Warn("session refused", "from", conn.RemoteAddr(), "err", err)
		}
		return
	}
	l, displaced := s.registry.add(conn, member, time.Now())
	defer s.registry.remove(l)
	if displaced != nil {
		closeLine(displaced.conn, closeNewer, "newer sessions of the same member took its place")
	}
	end := s.converse(ctx, l)
	closeLine(conn, end.code, end.text)
}

func (s *Server) converse(ctx context.Context, l *line) ending {
	greeting, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	stream, err := l.conn.AcceptStream(greeting)
	if err != nil {
		return endingOf(ctx, err)
	}
	// The client's bytes that follow its greeting are read ahead: one decoder for the whole session.
	decoder := wire.NewDecoder(stream)
	if end, ok := s.greet(ctx, l, stream, decoder); !ok {
		return end
	}

	peer := l.peer()
	log := s.config.Log.With("member", peer.Name, "session", peer.ID)
	log.Info("session up", "from", peer.Addr, "serial", peer.Serial)
	s.config.Handler.SessionUp(peer)

	out := newOutbox()
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := out.run(stream); err != nil {
			closeLine(l.conn, closeSlow, "answers were not read in time")
		}
	})
	unhook := context.AfterFunc(ctx, func() { closeLine(l.conn, closeStopping, "the agent stops") })
	end := s.answer(l, decoder, out)
	unhook()
	out.close()
	// Unblocks a write under way.
	closeLine(l.conn, end.code, end.text)
	writing.Wait()

	peer = l.peer()
	s.config.Handler.SessionDown(peer)
	log.Info("session down", "lasted", time.Since(l.since).Round(time.Second), "why", end.text)
	return end
}

func (s *Server) greet(ctx context.Context, l *line, stream *quic.Stream, decoder *wire.Decoder) (ending, bool) {
	if err := stream.SetDeadline(time.Now().Add(greetTimeout)); err != nil {
		return endingOf(ctx, err), false
	}
	m, err := decoder.Next()
	if err != nil {
		return endingOf(ctx, err), false
	}
	hello, ok := m.(wire.Hello)
	if !ok {
		return ending{closeProtocol, "the first message was no greeting"}, false
	}
	if hello.Version != wire.Version {
		return ending{closeVersion, fmt.Sprintf("this waypoint speaks version %d, the client version %d", wire.Version, hello.Version)}, false
	}
	frame, err := wire.Append(nil, wire.Hello{
		Version: wire.Version, Offers: s.config.Offers, Lease: s.config.Lease, Observed: addrPort(l.conn.RemoteAddr()),
	})
	if err != nil {
		return ending{closeProtocol, err.Error()}, false
	}
	if _, err := stream.Write(frame); err != nil {
		return endingOf(ctx, err), false
	}
	if err := stream.SetDeadline(time.Time{}); err != nil {
		return endingOf(ctx, err), false
	}
	return ending{}, true
}

// answer reads requests until the session ends, and waits for those under way.
func (s *Server) answer(l *line, decoder *wire.Decoder, out *outbox) ending {
	ctx, cancel := context.WithCancel(l.conn.Context())
	var requests sync.WaitGroup
	defer requests.Wait()
	defer cancel()
	slots := make(chan struct{}, s.config.Limits.Outstanding)
	for {
		m, err := decoder.Next()
		var malformed *wire.MalformedError
		if err != nil && !errors.As(err, &malformed) {
			return endingOf(ctx, err)
		}
		if err := l.use.messages.Wait(ctx); err != nil {
			return endingOf(ctx, err)
		}
		var reply wire.Message
		switch m := m.(type) {
		case wire.MapRequest:
			switch {
			case !l.use.requests.Allow():
				reply = &wire.Refusal{ID: m.ID, Code: wire.RateLimited, RetryAfter: time.Second,
					Message: fmt.Sprintf("%v requests a second are allowed", s.config.Limits.RequestRate)}
			case !take(slots):
				reply = &wire.Refusal{ID: m.ID, Code: wire.Busy, RetryAfter: 100 * time.Millisecond,
					Message: fmt.Sprintf("%d requests may be under way", s.config.Limits.Outstanding)}
			default:
				requests.Go(func() {
					defer func() { <-slots }()
					s.send(out, m, s.grant(ctx, l, m))
				})
				continue
			}
		case wire.Ping:
			reply = wire.Pong{ID: m.ID, Observed: addrPort(l.conn.RemoteAddr())}
		case nil:
			reply = &wire.Refusal{ID: malformed.ID, Code: wire.Malformed, Message: malformed.Error()}
		default:
			reply = &wire.Refusal{Code: wire.Malformed, Message: fmt.Sprintf("%T is nothing a waypoint is told", m)}
		}
		if err := out.put(reply); err != nil {
			return endingOf(ctx, err)
		}
	}
}

func take(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// grant has the handler decide. The grant is for the address the handler was told, even if the session
// has moved meanwhile.
func (s *Server) grant(ctx context.Context, l *line, req wire.MapRequest) wire.Message {
	peer := l.peer()
	granted, refusal := s.config.Handler.Map(ctx, peer, req)
	if refusal != nil {
		answer := *refusal
		answer.ID = req.ID
		return answer
	}
	granted.ID, granted.Client = req.ID, peer.Addr
	return granted
}

// send answers a request, whatever the handler made of it.
func (s *Server) send(out *outbox, req wire.MapRequest, answer wire.Message) {
	err := out.put(answer)
	if err == nil || errors.Is(err, errClosed) {
		return
	}
	s.config.Log.Error("answer cannot be sent", "server", req.Server, "err", err)
	_ = out.put(&wire.Refusal{ID: req.ID, Code: wire.Internal}) // can fail only by the session's end
}

// endingOf says why a session ends on which reading or writing failed. If it is the other side that
// ended it, or we ourselves elsewhere, nothing of this is sent.
func endingOf(ctx context.Context, err error) ending {
	if ctx.Err() != nil {
		return ending{closeStopping, "the agent stops"}
	}
	var app *quic.ApplicationError
	var deadline interface{ Timeout() bool }
	switch {
	case errors.As(err, &app) && app.Remote && app.ErrorCode == closeDone:
		return ending{closeDone, "the client closed it"}
	case errors.Is(err, wire.ErrFraming):
		return ending{closeProtocol, err.Error()}
	case errors.As(err, &app):
		return ending{app.ErrorCode, app.ErrorMessage}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &deadline) && deadline.Timeout():
		return ending{closeSilent, "the client did not say anything in time"}
	}
	return ending{closeProtocol, err.Error()}
}
