package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/strangers"
)

// What others may make us hold. A member that renews is no stranger, once it has shown its certificate. It needs
// one connection at a time; after a try that timed out there may be others.
const (
	maxStrangers = 1024
	maxPerSource = 64
	maxPerMember = 8
	lingers      = 20 * time.Second // as long as who joins waits
	shutdown     = 5 * time.Second
)

// addresses are those that listeners have got.
type addresses struct{ front, bus string }

// front is the listener of HTTPS with its server.
type front struct {
	listener net.Listener
	server   *http.Server
	failed   chan error
}

// listen opens the door to who joins and renews.
func (c *Coordinator) listen() (*front, error) {
	l, err := net.Listen("tcp", c.config.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for hosts that join: %w", err)
	}
	f := &front{listener: l, failed: make(chan error, 1)}
	limits := strangers.Limits{Total: maxStrangers, PerSource: maxPerSource, Patience: lingers, PerMember: maxPerMember}
	f.server = &http.Server{
		Handler:           enrol.NewHandler(desk{c}, c.now, c.config.Log),
		ReadHeaderTimeout: lingers, ReadTimeout: lingers, WriteTimeout: lingers,
		MaxHeaderBytes: 8 << 10,
		ConnState:      c.admit,
		ErrorLog:       slog.NewLogLogger(c.config.Log.Handler(), slog.LevelDebug),
	}
	f.server.SetKeepAlivesEnabled(false) // a connection that says nothing keeps no place
	go func() {
		err := f.server.Serve(tls.NewListener(strangers.NewListener(l, limits, c.seen), enrol.ServerTLS(c.config.Identity)))
		if !errors.Is(err, http.ErrServerClosed) {
			f.failed <- err
		}
	}()
	c.config.Log.Info("coordinator: listening for hosts that join", "address", f.address())
	return f, nil
}

func (f *front) address() string { return f.listener.Addr().String() }

// close lets requests finish that are under way.
func (f *front) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdown)
	defer cancel()
	if err := f.server.Shutdown(ctx); err != nil {
		return f.server.Close()
	}
	return nil
}

// admit makes a member none of the strangers. It is told of every connection; with its first byte, a client has
// proved in the handshake that the certificate is its own.
func (c *Coordinator) admit(conn net.Conn, state http.ConnState) {
	secure, ok := conn.(*tls.Conn)
	if !ok || state != http.StateActive {
		return
	}
	var chain [][]byte
	for _, cert := range secure.ConnectionState().PeerCertificates {
		chain = append(chain, cert.Raw)
	}
	member, err := c.config.Identity.Trust().Verify(chain, c.now())
	if stranger, bounded := secure.NetConn().(*strangers.Conn); bounded && err == nil {
		stranger.Admit(member.Name)
	}
}

// coordinators is where members find this coordinator.
func (c *Coordinator) coordinators() []enrol.Endpoint {
	at := c.config.Listen
	if s := c.serving.Load(); s != nil {
		at = s.front
	}
	return endpoints(c.config.Identity.Name(), c.config.Addresses, portOf(at, enrol.DefaultPort))
}

// busServers is where members find the bus.
func (c *Coordinator) busServers() []enrol.Endpoint {
	if len(c.config.BusServers) > 0 {
		return c.config.BusServers
	}
	at := c.config.BusListen
	if s := c.serving.Load(); s != nil {
		at = s.bus
	}
	return endpoints(c.config.Identity.Name(), c.config.Addresses, portOf(at, DefaultBusPort))
}

func portOf(address string, otherwise int) string {
	if _, port, err := net.SplitHostPort(address); err == nil && port != "" && port != "0" {
		return port
	}
	return strconv.Itoa(otherwise)
}

// endpoints are the addresses of this host with a port.
func endpoints(name string, hosts []string, port string) (out []enrol.Endpoint) {
	for _, h := range hosts {
		out = append(out, enrol.Endpoint{Name: name, Address: net.JoinHostPort(h, port)})
	}
	return out
}
