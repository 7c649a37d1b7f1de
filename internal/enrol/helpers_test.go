package enrol

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// world is a collective with a signer and a coordinator named hub.
type world struct {
	t      *testing.T
	root   *collective.CA
	signer *collective.CA
	hub    *collective.Identity
	server *fake
	at     Endpoint
}

// fake is a coordinator that grants everything, or acts as a test sets it.
type fake struct {
	signer *collective.CA
	off    time.Duration // of its clock
	join   func(JoinRequest) (*Welcome, error)
	renew  func(collective.PublicKey, RenewRequest) (*Welcome, error)
	leave  func(collective.PublicKey) error
	trust  func() *TrustMessage
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root, err := collective.InitCA(t.TempDir(), "test collective")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := root.NewSigner(filepath.Join(t.TempDir(), "signer"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, root: root, signer: signer, server: &fake{signer: signer}}
	w.hub = w.identity(collective.Request{Name: "hub"})
	w.at = w.serve(w.hub)
	return w
}

// identity issues an identity, with its own directory.
func (w *world) identity(r collective.Request) *collective.Identity {
	w.t.Helper()
	if r.Validity == 0 {
		r.Validity = time.Hour
	}
	issued, err := w.signer.Issue(r)
	if err != nil {
		w.t.Fatal(err)
	}
	dir := w.t.TempDir()
	f := collective.Files{
		Certificate: issued.CertFile, Key: issued.KeyFile,
		CA: filepath.Join(dir, "ca.crt"), CRL: filepath.Join(dir, "ca.crl"),
	}
	for to, from := range map[string]string{f.CA: w.signer.CertFile(), f.CRL: w.signer.CRLFile()} {
		data, err := os.ReadFile(from)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	id, err := collective.Load(f, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// serve is the interface as the identity, until the test ends.
func (w *world) serve(id *collective.Identity) Endpoint {
	return w.serveTLS(id.Name(), ServerTLS(id))
}

func (w *world) serveTLS(name string, config *tls.Config) Endpoint {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	now := func() time.Time { return time.Now().Add(w.server.off) }
	s := &http.Server{Handler: NewHandler(w.server, now, quiet), ErrorLog: slog.NewLogLogger(quiet.Handler(), slog.LevelDebug)}
	go s.Serve(tls.NewListener(l, config))
	w.t.Cleanup(func() { s.Close() })
	return Endpoint{Name: name, Address: l.Addr().String()}
}

func (w *world) line(at ...Endpoint) Line {
	return Line{Collective: "test collective", Coordinators: at, Root: RootOf(w.hub), Secret: NewSecret(), Expires: time.Now().Add(time.Hour)}
}

func (w *world) request(name string) []byte {
	w.t.Helper()
	key, err := collective.NewKey(filepath.Join(w.t.TempDir(), "key"))
	if err != nil {
		w.t.Fatal(err)
	}
	request, err := collective.NewRequest(key, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return request
}

func (f *fake) Join(_ context.Context, r JoinRequest) (*Welcome, error) {
	if f.join != nil {
		return f.join(r)
	}
	return f.grant(r.Request)
}

func (f *fake) Renew(_ context.Context, key collective.PublicKey, _ [][]byte, r RenewRequest) (*Welcome, error) {
	if f.renew != nil {
		return f.renew(key, r)
	}
	return f.grant(r.Request)
}

func (f *fake) Leave(_ context.Context, key collective.PublicKey) error {
	if f.leave != nil {
		return f.leave(key)
	}
	return nil
}

func (f *fake) Trust(context.Context) (*TrustMessage, error) {
	if f.trust != nil {
		return f.trust(), nil
	}
	t, err := f.signer.Trust()
	if err != nil {
		return nil, err
	}
	m := NewTrustMessage(t)
	return &m, nil
}

func (f *fake) grant(request string) (*Welcome, error) {
	r, err := collective.ParseRequest([]byte(request))
	if err != nil {
		return nil, Refuse(Malformed, "%v", err)
	}
	signed, err := f.signer.Sign(r, collective.Terms{Name: r.Name(), Validity: time.Hour})
	if err != nil {
		return nil, err
	}
	t, err := f.Trust(context.Background())
	if err != nil {
		return nil, err
	}
	return &Welcome{Chain: string(signed.Chain), TrustMessage: *t, BusJWT: "a JWT", BusServers: []Endpoint{{"hub", "192.0.2.1:45673"}}}, nil
}

func wantRefusal(t *testing.T, err error, want Reason) *Refusal {
	t.Helper()
	r, ok := errors.AsType[*Refusal](err)
	if !ok || r.Reason != want {
		t.Fatalf("got %v, want a refusal because of %s", err, want)
	}
	if r.Fix() == "" {
		t.Errorf("%v does not say what to do", err)
	}
	return r
}
