package probe

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/strangers"
)

// Limits of a server. All clients count as strangers.
const (
	maxClients, maxClientsOfOne = 256, 16
	helloLimit                  = 10 * time.Second
)

// Server answers clients. It stores nothing about them.
type Server struct {
	// Prefer, unless nil, is called before each reply. It may choose the reply's path.
	Prefer func(net.Conn) error
	Log    *slog.Logger
}

// Listen opens a server's socket, which accepts MPTCP and plain TCP.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(true)
	return lc.Listen(ctx, "tcp", address)
}

// Serve answers the clients of a listener until ctx ends, and closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	places := strangers.NewPlaces(strangers.Limits{Total: maxClients, PerSource: maxClientsOfOne}, strangers.NewSeen())
	return strangers.Each(ctx, l, func(conn net.Conn) {
		place := places.Enter(conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), func() { conn.Close() })
		defer place.Leave()
		if err := s.serve(ctx, conn); err != nil && ctx.Err() == nil {
			s.Log.Info("an exchange did not come to its end", "client", conn.RemoteAddr(), "error", err)
		}
	})
}

// serve carries out one exchange.
func (s *Server) serve(ctx context.Context, conn net.Conn) error {
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	conn.SetDeadline(time.Now().Add(helloLimit))
	shape, seed, err := readHello(conn)
	if err != nil {
		return fmt.Errorf("read what is to come: %w", err)
	}
	conn.SetDeadline(time.Now().Add(shape.length() + patience))
	if err := writeHello(conn, slices.Index(Shapes(), shape), seed); err != nil {
		return err
	}
	for _, turn := range shape.script(seed) {
		if err := discard(conn, turn.requestSize()); err != nil {
			return fmt.Errorf("wait for a request: %w", err)
		}
		if turn.reply == 0 {
			continue
		}
		if s.Prefer != nil {
			if err := s.Prefer(conn); err != nil {
				return fmt.Errorf("choose the path of a reply: %w", err)
			}
		}
		if err := s.reply(ctx, conn, turn); err != nil {
			return fmt.Errorf("reply: %w", err)
		}
	}
	// The client closes first, so that its socket waits for late packets and not the server's.
	_, _ = conn.Read(make([]byte, 1))
	return nil
}

// reply sends one reply, at once or message by message.
func (s *Server) reply(ctx context.Context, conn net.Conn, turn round) error {
	message := turn.message
	if message == 0 {
		message = min(turn.reply, 64<<10)
	}
	data := make([]byte, message)
	start := time.Now()
	for i, left := 0, turn.reply; left > 0; i, left = i+1, left-message {
		if err := pause(ctx, time.Until(start.Add(time.Duration(i)*turn.interval))); err != nil {
			return err
		}
		if _, err := conn.Write(data[:min(left, message)]); err != nil {
			return err
		}
	}
	return nil
}

// discard reads n bytes.
func discard(conn net.Conn, n int) error {
	buffer := make([]byte, min(n, 64<<10))
	for n > 0 {
		got, err := conn.Read(buffer[:min(n, len(buffer))])
		if n -= got; err != nil && n > 0 {
			return err
		}
	}
	return nil
}
