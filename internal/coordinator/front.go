package coordinator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/enrol"
)

// What strangers may make us hold.
const (
	maxStrangers = 1024 // connections
	maxPerSource = 64   // of them from one address, or one /64
	lingers      = 30 * time.Second
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
	f.server = &http.Server{
		Handler:           enrol.NewHandler(desk{c}, c.now, c.config.Log),
		ReadHeaderTimeout: lingers, ReadTimeout: lingers, WriteTimeout: lingers, IdleTimeout: lingers,
		MaxHeaderBytes: 8 << 10,
		ErrorLog:       slog.NewLogLogger(c.config.Log.Handler(), slog.LevelDebug),
	}
	go func() {
		err := f.server.Serve(tls.NewListener(newBounded(l), enrol.ServerTLS(c.config.Identity)))
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

// bounded closes connections that are too many, in all or from one source.
type bounded struct {
	net.Listener
	mu      sync.Mutex
	total   int
	sources map[netip.Prefix]int
}

func newBounded(l net.Listener) *bounded {
	return &bounded{Listener: l, sources: map[netip.Prefix]int{}}
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if source := sourceOf(conn); b.enter(source) {
			return &guest{Conn: conn, leave: sync.OnceFunc(func() { b.leave(source) })}, nil
		}
		conn.Close()
	}
}

func (b *bounded) enter(source netip.Prefix) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total >= maxStrangers || b.sources[source] >= maxPerSource {
		return false
	}
	b.total++
	b.sources[source]++
	return true
}

func (b *bounded) leave(source netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total--
	if b.sources[source]--; b.sources[source] == 0 {
		delete(b.sources, source)
	}
}

// sourceOf is the network that a host has for itself.
func sourceOf(conn net.Conn) netip.Prefix {
	ap, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	a, bits := ap.Addr().Unmap().WithZone(""), 32
	if a.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(a, bits).Masked()
}

type guest struct {
	net.Conn
	leave func()
}

func (g *guest) Close() error {
	g.leave()
	return g.Conn.Close()
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
