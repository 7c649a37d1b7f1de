package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/collective"
)

// Stream is a stream of bytes beside the messages of a session, for data that is too large for them.
type Stream interface {
	io.Reader
	io.Writer
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// asides serves the streams that the client opens beside a session's messages, one at a time, until the session ends.
func (s *service) asides(l *line, peer Peer) {
	ctx := l.conn.Context()
	for {
		stream, err := l.conn.AcceptStream(ctx)
		if err != nil {
			return
		}
		s.handler.Aside(ctx, peer, stream)
		stream.CancelRead(0)
		_ = stream.Close() // fails only if the session has ended
	}
}

// ErrNoAsides means that the member serves no streams beside the messages of a session.
var ErrNoAsides = errors.New("the member does not offer this")

// Aside is the client's end of a Stream, with the session to which it belongs.
type Aside struct {
	*quic.Stream
	call *call
	quit chan struct{}
	work sync.WaitGroup
}

// OpenAside opens a session with the named member, and a stream in it. The member notices the stream only when the
// first byte is written. The error is a *Problem if the member cannot be reached. Close must be called.
func OpenAside(ctx context.Context, identity *collective.Identity, name string, at netip.AddrPort) (*Aside, error) {
	line, heard, err := dial(ctx, ClientConfig{Identity: identity, Name: name, Addr: at})
	if err != nil {
		return nil, explain(where{waypoint: name, addr: at, heard: heard}, err)
	}
	a := &Aside{call: newCall(line), quit: make(chan struct{})}
	if a.Stream, err = line.conn.OpenStream(); err != nil {
		a.end()
		if _, full := errors.AsType[*quic.StreamLimitReachedError](err); full {
			err = ErrNoAsides
		}
		return nil, fmt.Errorf("open a stream to %s: %w", name, err)
	}
	a.work.Go(a.keepAlive)
	return a, nil
}

// keepAlive sends pings, because a session without packets ends.
func (a *Aside) keepAlive() {
	tick := time.NewTicker(idleTimeout / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.call.ping()
		case <-a.quit:
			return
		}
	}
}

// CloseWrite ends the outgoing direction of the stream. Reading continues.
func (a *Aside) CloseWrite() error { return a.Stream.Close() }

// Close ends the session.
func (a *Aside) Close() error {
	close(a.quit)
	a.work.Wait()
	a.end()
	return nil
}

func (a *Aside) end() {
	a.call.end(closeDone, "", errClosed)
	a.call.close()
}
