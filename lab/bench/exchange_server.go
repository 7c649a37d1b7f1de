package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/lab/remote"
)

// ExchangeServer is the server behind relays. Its only port accepts plain TCP and, if Multipath is set, MPTCP.
type ExchangeServer struct {
	At        netip.AddrPort
	Multipath bool
	meter
}

// Run serves until in ends.
func (s *ExchangeServer) Run(ctx context.Context, in io.Reader, out io.Writer, _ *slog.Logger) error {
	s.began = time.Now()
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(s.Multipath)
	l, err := lc.Listen(ctx, "tcp4", s.At.String())
	if err != nil {
		return fmt.Errorf("serve connections through relays: %w", err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // it was closed, or the client will miss the answer
			}
			go s.serve(conn)
		}
	}()
	return remote.Serve(s, in, out)
}

// startServer starts the server on its host. It returns when the server answers calls, and therefore listens.
func (s *network) startServer(ctx context.Context, server *ExchangeServer) (*exchangeEnd, error) {
	end, err := s.startEnd(ctx, serverHost, ExchangeServerPart, server)
	if err != nil {
		return nil, err
	}
	if err := end.call("Received", struct{}{}, nil); err != nil {
		return nil, err
	}
	return end, nil
}

// zeros is the data that a server sends.
var zeros = make([]byte, 128<<10)

func (s *ExchangeServer) serve(conn net.Conn) {
	defer conn.Close()
	var b [requestSize]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return
	}
	switch b[0] {
	case discards:
		s.take(conn)
	case sends:
		for {
			if _, err := conn.Write(zeros); err != nil {
				return
			}
		}
	case answers:
		for size := int(binary.BigEndian.Uint64(b[1:])); size > 0; {
			n, err := conn.Write(zeros[:min(size, len(zeros))])
			if err != nil {
				return
			}
			size -= n
		}
	case echoes:
		for {
			if _, err := conn.Write(b[:]); err != nil {
				return
			}
			if _, err := io.ReadFull(conn, b[:]); err != nil {
				return
			}
		}
	}
}
