package session

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// authority is a collective for one test.
type authority struct {
	t  testing.TB
	ca *collective.CA
	mu sync.Mutex // held while the files of a member, which have fixed names, are copied
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	ca, err := collective.InitCA(t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, ca: ca}
}

// files issues an identity, and puts it into a directory of its own, as on its host.
func (a *authority) files(r collective.Request) collective.Files {
	a.t.Helper()
	if r.Validity == 0 {
		r.Validity = time.Hour
	}
	r.Reissue = true
	a.mu.Lock()
	defer a.mu.Unlock()
	issued, err := a.ca.Issue(r)
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	f := collective.Files{
		Certificate: filepath.Join(dir, "me.crt"), Key: filepath.Join(dir, "me.key"),
		CA: filepath.Join(dir, "ca.crt"), CRL: filepath.Join(dir, "ca.crl"),
	}
	put(a.t, issued.CertFile, f.Certificate)
	put(a.t, issued.KeyFile, f.Key)
	put(a.t, a.ca.CertFile(), f.CA)
	put(a.t, a.ca.CRLFile(), f.CRL)
	return f
}

func (a *authority) identity(name string) *collective.Identity {
	a.t.Helper()
	return load(a.t, a.files(collective.Request{Name: name}))
}

func load(t testing.TB, f collective.Files) *collective.Identity {
	t.Helper()
	id, err := collective.Load(f, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func put(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
}

// granter grants everyone the proposed port.
type granter struct {
	mu   sync.Mutex
	up   []Peer
	down []Peer
	// decide, if not nil, decides instead.
	decide func(context.Context, Peer, wire.MapRequest) (wire.MapGrant, *wire.Refusal)
	// tunnel, if not nil, decides about tunnels. Otherwise everyone gets one.
	tunnel func(context.Context, Peer, wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal)
	aside  func(context.Context, Peer, Stream)
	moves  [][2]Peer
	closed *Closed
	loaded Load
	offers []wire.Kind // nil: mappings only
}

func (g *granter) SessionUp(p Peer)   { g.mu.Lock(); g.up = append(g.up, p); g.mu.Unlock() }
func (g *granter) SessionDown(p Peer) { g.mu.Lock(); g.down = append(g.down, p); g.mu.Unlock() }
func (g *granter) Offers() []wire.Kind {
	if g.offers != nil {
		return g.offers
	}
	return []wire.Kind{wire.Mapped}
}
func (g *granter) Closed() *Closed { g.mu.Lock(); defer g.mu.Unlock(); return g.closed }
func (g *granter) Aside(ctx context.Context, p Peer, s Stream) {
	g.aside(ctx, p, s)
}
func (g *granter) Load() Load {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.loaded
}

func (g *granter) SessionMoved(before, now Peer) {
	g.mu.Lock()
	g.moves = append(g.moves, [2]Peer{before, now})
	g.mu.Unlock()
}

func (g *granter) MemberLeft(Peer, netip.Addr) {}

func (g *granter) Tunnel(ctx context.Context, p Peer, r wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	if g.tunnel != nil {
		return g.tunnel(ctx, p, r)
	}
	return wire.TunnelGrant{Lease: time.Minute}, nil
}

func (g *granter) Map(ctx context.Context, p Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
	if g.decide != nil {
		return g.decide(ctx, p, r)
	}
	return wire.MapGrant{Port: r.Proposed, Lease: time.Minute}, nil
}

func (g *granter) counts() (up, down int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.up), len(g.down)
}

// waypoint is a running server.
type waypoint struct {
	*Server
	at   netip.AddrPort
	stop func()
	// crash ends the server without telling anyone.
	crash func()
}

// live returns the peers of the open sessions, the oldest first.
func (w *waypoint) live() (peers []Peer) {
	for _, l := range w.registry.all() {
		peers = append(peers, l.peer())
	}
	return peers
}

// served configures startServer. Only Identity is required.
type served struct {
	Listen   string
	Identity *collective.Identity
	Handler  Handler
	Limits   Limits
	Asides   bool
	Log      *slog.Logger

	MappedOnly func(string) bool
}

func startServer(t testing.TB, config served) *waypoint {
	t.Helper()
	if config.Listen == "" {
		config.Listen = "127.0.0.1:0"
	}
	if config.Limits == (Limits{}) {
		config.Limits = DefaultLimits()
	}
	if config.Log == nil {
		config.Log = quiet()
	}
	if config.Handler == nil {
		config.Handler = &granter{}
	}
	s, err := Listen(ServerConfig{
		Listen: config.Listen, Identity: config.Identity, Lease: time.Minute, Limits: config.Limits, Asides: config.Asides, Log: config.Log, MappedOnly: config.MappedOnly,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, config.Handler) }()
	var once sync.Once
	w := &waypoint{Server: s, at: s.Addr()}
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("serve: %v", err)
			}
		})
	}
	w.crash = func() {
		once.Do(func() {
			s.transport.Close()
			s.socket.Close()
			cancel()
			<-done
		})
	}
	t.Cleanup(w.stop)
	return w
}

// member is a running client with a queue of its changes.
type member struct {
	*Client
	t       testing.TB
	changes chan State
}

func startClient(t testing.TB, id *collective.Identity, name string, at netip.AddrPort) *member {
	t.Helper()
	return startClientOf(t, ClientConfig{Identity: id, Name: name, Addr: at})
}

func startClientOf(t testing.TB, config ClientConfig) *member {
	t.Helper()
	m := &member{t: t, changes: make(chan State, 100)}
	config.Log, config.Changed = quiet(), func(s State) { m.changes <- s }
	m.Client = NewClient(config)
	t.Cleanup(m.Close)
	return m
}

// await returns the first change for which fits is true.
func (m *member) await(what string, fits func(State) bool) State {
	m.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case s := <-m.changes:
			if fits(s) {
				return s
			}
		case <-deadline:
			m.t.Fatalf("%s: still %+v, problem %v", what, m.State(), m.State().Problem)
		}
	}
}

func (m *member) awaitUp() State {
	m.t.Helper()
	return m.await("coming up", func(s State) bool { return s.Up })
}

func (m *member) awaitProblem(code ProblemCode) *Problem {
	m.t.Helper()
	return m.await("problem "+string(code), func(s State) bool { return s.Problem != nil && s.Problem.Code == code }).Problem
}

func (m *member) mapping(server string) (Grant, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	at := netip.MustParseAddrPort(server)
	return m.Map(ctx, at, at.Port(), false)
}

func (m *member) mustMap(server string) Grant {
	m.t.Helper()
	g, err := m.mapping(server)
	if err != nil {
		m.t.Fatal(err)
	}
	return g
}

// silent is a UDP socket that answers only if answer returns something.
func silent(t testing.TB, answer func(datagram []byte) []byte) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFromUDP(buf)
			if err != nil {
				return
			}
			if out := answer(buf[:n]); out != nil {
				c.WriteToUDP(out, from)
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return addrPort(c.LocalAddr())
}
