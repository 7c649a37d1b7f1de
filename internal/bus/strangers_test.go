package bus

import (
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// from connects to a server from another loopback address, and keeps the connection idle.
func from(t *testing.T, source string, e Endpoint) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(source), 0))}
	conn, err := dialer.DialContext(t.Context(), "tcp", e.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// Strangers have idle connections, one from each of more addresses than there are places. They take no member's place,
// although they would fill a server that counts all connections.
func TestStrangersKeepNobodyOut(t *testing.T) {
	w := newWorld(t)
	s := w.serveWith(t.TempDir(), "127.0.0.1:0", 10)
	w.coordinator(echo(), s.Endpoint())
	for i := range 300 {
		from(t, fmt.Sprintf("127.0.%d.%d", 1+i/200, 1+i%200), s.Endpoint())
	}
	alice := w.member(w.identity("alice"), nothing, s.Endpoint())
	eventually(t, "alice is in", 10*time.Second, func() bool { return alice.State().Connected })
	if answer, err := alice.Ask(within(t, 10*time.Second), "x", []byte("hello")); err != nil || string(answer) != "alice x hello" {
		t.Errorf("%s, %v", answer, err)
	}
	if n := s.Connections(); n > 2 {
		t.Errorf("strangers count as connected: %d are", n)
	}
}

// While too many strangers connect, the oldest ones are disconnected.
func TestOldestStrangerGivesWay(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	first := from(t, "127.0.0.9", s.Endpoint())
	for range maxPerSource {
		from(t, "127.0.0.9", s.Endpoint())
	}
	first.SetReadDeadline(time.Now().Add(2 * time.Second))
	_, err := first.Read(make([]byte, 1))
	if timeout, ok := errors.AsType[net.Error](err); err == nil || ok && timeout.Timeout() {
		t.Errorf("the oldest of %d strangers of one address is still there: %v", maxPerSource+1, err)
	}
	if n := s.entrance.listener.Strangers(); n > maxPerSource {
		t.Errorf("%d strangers", n)
	}
}

// Somebody who has only seen a member's certificate, which is in every record, cannot harm the member. A connection
// counts as the member's only after the TLS handshake.
func TestCertificateAloneCutsNobody(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	id, thief := w.identity("alice"), w.identity("mallory")
	alice := w.member(id, nothing, s.Endpoint())
	eventually(t, "alice is in", 10*time.Second, func() bool { return alice.State().Connected })

	stolen := tls.Certificate{Certificate: id.Chain(), PrivateKey: signer{thief}}
	for range 3 * maxConnections {
		config := w.hub.ClientTLS(alpn, "hub").Clone()
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stolen, nil }
		conn, err := tls.Dial("tcp", s.Endpoint().Address, config)
		if err == nil {
			conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			if n, err := conn.Read(make([]byte, 100)); n > 0 {
				t.Fatalf("the server speaks to a thief (%v)", err)
			}
			conn.Close()
		}
	}
	time.Sleep(100 * time.Millisecond)
	if state := alice.State(); !state.Connected || state.Connects != 1 {
		t.Errorf("alice was cut off: %+v", state)
	}
}

// A server knows from which addresses a member is connected, and notices when it disconnects.
func TestAddresses(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	alice := w.member(w.identity("alice"), nothing, s.Endpoint())
	eventually(t, "alice is in", 10*time.Second, func() bool { return alice.State().Connected })
	if got := s.Addresses("alice"); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("127.0.0.1")}) {
		t.Errorf("alice is at %v", got)
	}
	alice.Close()
	eventually(t, "alice has gone", 10*time.Second, func() bool { return !s.Connected("alice") && s.Addresses("alice") == nil })
}

// A client that does not read is disconnected, and leaves nothing behind.
func TestSlowReaderLeavesNothing(t *testing.T) {
	t.Parallel()
	member, far := net.Pipe()
	inside, nats := net.Pipe()
	defer far.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		carry(member, inside)
	}()
	go func() {
		for {
			if _, err := nats.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(6 * writeDeadline):
		t.Fatal("the connection of who does not read stays")
	}
}

// signer signs with a member's key.
type signer struct{ *collective.Identity }

func (s signer) Public() crypto.PublicKey { return s.PublicKey() }

func (s signer) Sign(_ io.Reader, message []byte, _ crypto.SignerOpts) ([]byte, error) {
	return s.Identity.Sign(message), nil
}
