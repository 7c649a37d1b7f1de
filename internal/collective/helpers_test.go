package collective

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// newSigner returns a signer under root, with its own directory.
func newSigner(t *testing.T, root *CA) *CA {
	t.Helper()
	s, err := root.NewSigner(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// enrol has a member make its key, and the authority sign for it, as through a coordinator.
func enrol(t *testing.T, ca *CA, terms Terms) Files {
	t.Helper()
	dir := t.TempDir()
	f := Files{
		Certificate: filepath.Join(dir, "me.crt"), Key: filepath.Join(dir, "me.key"),
		CA: filepath.Join(dir, "ca.crt"), CRL: filepath.Join(dir, "ca.crl"),
	}
	key, err := NewKey(f.Key)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := NewRequest(key, terms.Name)
	if err != nil {
		t.Fatal(err)
	}
	out := sign(t, ca, pem, terms)
	if err := durable.Replace(f.Certificate, out.Chain, 0o644); err != nil {
		t.Fatal(err)
	}
	copyFile(t, ca.CertFile(), f.CA)
	copyFile(t, ca.CRLFile(), f.CRL)
	return f
}

func sign(t *testing.T, ca *CA, request []byte, terms Terms) Signed {
	t.Helper()
	r, err := ParseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ca.Sign(r, terms)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// meet runs handshakes between two members in both directions, and returns an error unless all four sides accept.
func meet(t *testing.T, a, b *Identity) error {
	t.Helper()
	_, _, e1, e2 := handshake(t, a, b, a.Name())
	_, _, e3, e4 := handshake(t, b, a, b.Name())
	return errors.Join(e1, e2, e3, e4)
}

func newCA(t *testing.T) *CA {
	t.Helper()
	ca, err := InitCA(t.TempDir(), "test collective")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *CA, r Request) Issued {
	t.Helper()
	if r.Validity == 0 {
		r.Validity = time.Hour
	}
	out, err := ca.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// install copies an issued identity into a directory, as a member would.
func install(t *testing.T, ca *CA, i Issued) Files {
	t.Helper()
	dir := t.TempDir()
	f := Files{
		Certificate: filepath.Join(dir, "me.crt"), Key: filepath.Join(dir, "me.key"),
		CA: filepath.Join(dir, "ca.crt"), CRL: filepath.Join(dir, "ca.crl"),
	}
	copyFile(t, i.CertFile, f.Certificate)
	copyFile(t, i.KeyFile, f.Key)
	copyFile(t, ca.CertFile(), f.CA)
	copyFile(t, ca.CRLFile(), f.CRL)
	return f
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := durable.Replace(to, data, info.Mode()); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, f Files) *Identity {
	t.Helper()
	id, err := Load(f, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// handshake runs TLS between two members and returns the peer that each side saw.
func handshake(t *testing.T, server, client *Identity, name string) (atServer, atClient Member, serverErr, clientErr error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	b, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	a.SetDeadline(deadline)
	b.SetDeadline(deadline)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer a.Close()
		conn := tls.Server(a, server.ServerTLS("test"))
		if serverErr = conn.Handshake(); serverErr != nil {
			return
		}
		if atServer, serverErr = server.Peer(conn.ConnectionState()); serverErr != nil {
			return
		}
		_, serverErr = conn.Write([]byte{1})
	}()
	conn := tls.Client(b, client.ClientTLS("test", name))
	if clientErr = conn.Handshake(); clientErr == nil {
		atClient, clientErr = client.Peer(conn.ConnectionState())
		if clientErr == nil {
			// With TLS 1.3 the client learns of a refusal only when it reads.
			_, clientErr = conn.Read(make([]byte, 1))
		}
	}
	b.Close()
	<-done
	return
}
