package bus

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/strangers"
)

// world is a collective with a coordinator's host named hub.
type world struct {
	t         testing.TB
	ca        *collective.CA
	authority *Authority
	hub       *collective.Identity
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ca, err := collective.InitCA(t.TempDir(), "test collective")
	if err != nil {
		t.Fatal(err)
	}
	authority, err := InitAuthority(t.TempDir(), "test collective")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ca: ca, authority: authority}
	w.hub = w.identity("hub")
	return w
}

// files issues an identity and installs it on a new host.
func (w *world) files(r collective.Request) collective.Files {
	w.t.Helper()
	if r.Validity == 0 {
		r.Validity = time.Hour
	}
	issued, err := w.ca.Issue(r)
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	f := collective.Files{
		Certificate: filepath.Join(dir, "me.crt"), Key: filepath.Join(dir, "me.key"),
		CA: filepath.Join(dir, "ca.crt"), CRL: filepath.Join(dir, "ca.crl"),
	}
	copyFile(w.t, issued.CertFile, f.Certificate)
	copyFile(w.t, issued.KeyFile, f.Key)
	copyFile(w.t, w.ca.CertFile(), f.CA)
	copyFile(w.t, w.ca.CRLFile(), f.CRL)
	return f
}

func (w *world) identity(name string) *collective.Identity {
	w.t.Helper()
	return w.load(w.files(collective.Request{Name: name}))
}

func (w *world) load(f collective.Files) *collective.Identity {
	w.t.Helper()
	id, err := collective.Load(f, quiet())
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// serve starts an embedded server, which is closed at the end of the test.
func (w *world) serve(store, listen string) *Server {
	w.t.Helper()
	return w.serveWith(store, listen, 2000)
}

func (w *world) serveWith(store, listen string, connections int) *Server {
	w.t.Helper()
	s, err := Serve(ServerConfig{Identity: w.hub, Authority: w.authority, Listen: listen, Store: store, MaxConnections: connections, Seen: strangers.NewSeen(), Log: testLog(w.t)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

// config returns a member's Config, with a new JWT for each connection.
func (w *world) config(id *collective.Identity, servers ...Endpoint) Config {
	return Config{Identity: id, Servers: servers, Log: testLog(w.t), JWT: func() (string, error) {
		return w.authority.MemberJWT(id.Name(), id.PublicKey(), id.Self().NotAfter)
	}}
}

func (w *world) member(id *collective.Identity, receive func(Message), servers ...Endpoint) *Member {
	w.t.Helper()
	m, err := Connect(w.config(id, servers...), receive)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(m.Close)
	return m
}

func (w *world) coordinator(h Handlers, servers ...Endpoint) *Coordinator {
	w.t.Helper()
	c := w.config(w.hub, servers...)
	c.JWT = func() (string, error) {
		return w.authority.CoordinatorJWT(w.hub.Name(), w.hub.PublicKey(), w.hub.Self().NotAfter)
	}
	co, err := ConnectCoordinator(c, h)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(co.Close)
	return co
}

func nothing(Message) {}

// echo answers with the sender's name and its message.
func echo() Handlers {
	return Handlers{Handle: func(_ context.Context, r Request) ([]byte, error) {
		return []byte(r.From + " " + r.Topic + " " + string(r.Data)), nil
	}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// testLog writes to the test's log, which is shown if the test fails.
func testLog(t testing.TB) *slog.Logger {
	level := slog.LevelWarn
	if os.Getenv("DCOL_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to+".new", data, info.Mode()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok returns true. After within it fails, and names what is missing.
func eventually(t *testing.T, what string, within time.Duration, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(begin)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
