// Package gate holds the coordinator's listeners: HTTPS for hosts that join and members that renew (front.go), and the
// bus for members (bus.go). It bounds the connections of strangers.
package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/strangers"
)

// A member that renews needs one connection at a time. More may be left from requests that timed out.
const (
	MaxStrangers = 1024
	MaxPerSource = 64
	MaxPerMember = 8
	Patience     = 20 * time.Second // as long as a host that joins waits
)

const shutdown = 5 * time.Second

// FrontConfig holds what a Front needs.
type FrontConfig struct {
	Listen   string // host:port
	Identity *collective.Identity
	Service  enrol.Service
	Seen     *strangers.Seen // addresses of members
	Clock    func() time.Time
	Log      *slog.Logger
}

// Front is a running HTTPS server.
type Front struct {
	config   FrontConfig
	listener net.Listener
	server   *http.Server
	failed   chan error
}

// Listen starts to serve.
func Listen(c FrontConfig) (*Front, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for hosts that join: %w", err)
	}
	f := &Front{config: c, listener: l, failed: make(chan error, 1)}
	limits := strangers.Limits{Total: MaxStrangers, PerSource: MaxPerSource, Patience: Patience, PerMember: MaxPerMember}
	f.server = &http.Server{
		Handler:           enrol.NewHandler(c.Service, c.Clock, c.Log),
		ReadHeaderTimeout: Patience, ReadTimeout: Patience, WriteTimeout: Patience,
		MaxHeaderBytes: 8 << 10,
		ConnState:      f.admit,
		ErrorLog:       slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	f.server.SetKeepAlivesEnabled(false) // idle connections would take the places of others
	go func() {
		err := f.server.Serve(tls.NewListener(strangers.NewListener(l, limits, c.Seen), enrol.ServerTLS(c.Identity)))
		if !errors.Is(err, http.ErrServerClosed) {
			f.failed <- fmt.Errorf("listen for hosts that join: %w", err)
		}
	}()
	c.Log.Info("coordinator: listening for hosts that join", "address", f.Address())
	return f, nil
}

// Address returns the host:port where it listens.
func (f *Front) Address() string { return f.listener.Addr().String() }

// Failed has a value when the server cannot go on.
func (f *Front) Failed() <-chan error { return f.failed }

// Close waits a little for requests that are under way.
func (f *Front) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdown)
	defer cancel()
	if err := f.server.Shutdown(ctx); err != nil {
		return f.server.Close()
	}
	return nil
}

// admit stops counting a member's connection as a stranger's. The server reports each connection when its first byte
// arrives. By then the handshake has proved that the client has the certificate's key.
func (f *Front) admit(conn net.Conn, state http.ConnState) {
	secure, ok := conn.(*tls.Conn)
	if !ok || state != http.StateActive {
		return
	}
	var chain [][]byte
	for _, cert := range secure.ConnectionState().PeerCertificates {
		chain = append(chain, cert.Raw)
	}
	member, err := f.config.Identity.Trust().Verify(chain, f.config.Clock())
	if stranger, bounded := secure.NetConn().(*strangers.Conn); bounded && err == nil {
		stranger.Admit(member.Name)
	}
}
