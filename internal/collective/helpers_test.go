package collective

import (
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

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

// install copies what a member carries home into a directory of its own.
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
	if err := writeFile(to, data, info.Mode()); err != nil {
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

// handshake runs TLS between two members and returns what each side made of the other.
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
			// TLS 1.3 tells the client of a refusal only when it reads.
			_, clientErr = conn.Read(make([]byte, 1))
		}
	}
	b.Close()
	<-done
	return
}
