package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/detour-collective/dcol/internal/strangers"
)

// planLimit limits the time that a client takes to send its plan.
const planLimit = 10 * time.Second

// Server is the end that follows the plans of its clients.
type Server struct {
	Port int // TCP, of both families
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context, _ io.Reader, _ io.Writer, log *slog.Logger) error {
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(false) // the caller decides, not Go
	l, err := lc.Listen(ctx, "tcp", fmt.Sprintf(":%d", s.Port))
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	return serve(ctx, l, log)
}

// serve serves the clients of a listener, which it closes.
func serve(ctx context.Context, l net.Listener, log *slog.Logger) error {
	return strangers.Each(ctx, l, func(conn net.Conn) {
		if err := serveClient(ctx, conn); err != nil && ctx.Err() == nil {
			log.Error("a client's traffic did not come to its end", "client", conn.RemoteAddr(), "error", err)
		}
	})
}

// serveClient carries out one client's plan.
func serveClient(ctx context.Context, conn net.Conn) error {
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	conn.SetDeadline(time.Now().Add(planLimit))
	p, err := readPlan(conn)
	if err != nil {
		return fmt.Errorf("hear what is to come: %w", err)
	}
	conn.SetDeadline(time.Now().Add(p.end()))
	switch p.Kind {
	case Requests:
		return answer(conn, p)
	case Download:
		if err := sendMessages(ctx, conn, p); err != nil {
			return err
		}
		return drained(conn)
	default:
		done, err := receiveMessages(conn, p)
		if err != nil {
			return err
		}
		return writeArrivals(conn, done)
	}
}

// drained waits until the client has received everything and closes.
func drained(conn net.Conn) error {
	switch n, err := conn.Read(make([]byte, 1)); {
	case n > 0:
		return errors.New("the client says more than it should")
	case errors.Is(err, io.EOF):
		return nil
	default:
		return fmt.Errorf("wait for the client to close: %w", err)
	}
}
