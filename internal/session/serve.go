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

// ending is the reason why the waypoint ends a session.
type ending struct {
	code quic.ApplicationErrorCode
	text string
}

// handle serves one session after the handshake.
func (s *service) handle(ctx context.Context, conn *quic.Conn) {
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

func (s *service) converse(ctx context.Context, l *line) ending {
	greeting, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	stream, err := l.conn.AcceptStream(greeting)
	if err != nil {
		return endingOf(ctx, err)
	}
	// The decoder may read ahead of the greeting, so the whole session uses this one.
	decoder := wire.NewDecoder(stream)
	changed := s.news.wait()
	proof, end := s.greet(ctx, l, stream, decoder)
	if proof == nil {
		if end.code == closeUnattested && s.refusals.Allow() {
			s.config.Log.Warn("session refused", "member", l.member.Name, "from", l.conn.RemoteAddr(), "why", end.text)
		}
		return end
	}

	peer := l.peer()
	peer.Proof = proof
	log := s.config.Log.With("member", peer.Name, "session", peer.ID)
	log.Info("session up", "from", peer.Addr, "serial", peer.Serial)
	s.handler.SessionUp(peer)

	out := newOutbox()
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := out.run(stream); err != nil {
			closeLine(l.conn, closeSlow, "answers were not read in time")
		}
	})
	unhook := context.AfterFunc(ctx, func() { closeLine(l.conn, closeStopping, "the agent stops") })
	telling, stopTelling := context.WithCancel(ctx)
	writing.Go(func() { s.tellNews(telling, l, out, changed) })
	if s.config.Asides {
		writing.Go(func() { s.asides(l, peer) })
	}
	a := newAnswering(s, l, peer, out)
	end = a.run(ctx, decoder)
	unhook()
	stopTelling()
	out.close()
	// This unblocks a pending write.
	closeLine(l.conn, end.code, end.text)
	writing.Wait()

	s.handler.SessionDown(a.peer)
	log.Info("session down", "lasted", time.Since(l.since).Round(time.Second), "why", end.text)
	return end
}

// greet exchanges the first messages. If it returns no proof, ending is the reason.
func (s *service) greet(ctx context.Context, l *line, stream *quic.Stream, decoder *wire.Decoder) (*wire.Proof, ending) {
	if err := stream.SetDeadline(time.Now().Add(greetTimeout)); err != nil {
		return nil, endingOf(ctx, err)
	}
	m, err := decoder.Next()
	if err != nil {
		return nil, endingOf(ctx, err)
	}
	hello, ok := m.(wire.Hello)
	if !ok {
		return nil, ending{closeProtocol, "the first message was not a greeting"}
	}
	if hello.Version != wire.Version {
		return nil, ending{closeVersion, fmt.Sprintf("this waypoint speaks version %d, the client version %d", wire.Version, hello.Version)}
	}
	frame, err := wire.Append(nil, s.hello(l))
	if err != nil {
		return nil, ending{closeProtocol, err.Error()}
	}
	if _, err := stream.Write(frame); err != nil {
		return nil, endingOf(ctx, err)
	}
	proof, end := s.attested(ctx, l, decoder)
	if err := stream.SetDeadline(time.Time{}); proof != nil && err != nil {
		return nil, endingOf(ctx, err)
	}
	return proof, end
}

// endingOf returns why a session ends after a failed read or write. If the session was already
// closed, by the other side or by us, no reason is sent.
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
		return ending{closeSilent, "the client sent nothing in time"}
	}
	return ending{closeProtocol, err.Error()}
}
