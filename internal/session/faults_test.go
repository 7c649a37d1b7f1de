package session

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// Each reason why a waypoint cannot be used has its own problem, with a fix in its text. Requests fail at once.
func TestUnusableWaypoints(t *testing.T) {
	tests := map[string]struct {
		start func(t *testing.T, a *authority) netip.AddrPort
		code  ProblemCode
		words []string
	}{
		"silent": {func(t *testing.T, _ *authority) netip.AddrPort {
			return silent(t, func([]byte) []byte { return nil })
		}, NoAnswer, []string{"bob did not answer", "/udp", "firewall"}},
		"nothing there": {func(t *testing.T, _ *authority) netip.AddrPort {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			return addrPort(c.LocalAddr())
		}, NoAnswer, []string{"is its agent running"}},
		"echo": {func(t *testing.T, _ *authority) netip.AddrPort {
			return silent(t, func(b []byte) []byte { return b })
		}, Nonsense, []string{"opens no session", "check that a dcol waypoint listens"}},
		"random answers": {func(t *testing.T, _ *authority) netip.AddrPort {
			return silent(t, func(b []byte) []byte { rand.Read(b); return b })
		}, Nonsense, []string{"check that a dcol waypoint listens"}},
		"other authority": {func(t *testing.T, _ *authority) netip.AddrPort {
			return startServer(t, served{Identity: newAuthority(t).identity("bob")}).at
		}, OtherCA, []string{"not of your collective", "ca.crt"}},
		"other member": {func(t *testing.T, a *authority) netip.AddrPort {
			return startServer(t, served{Identity: a.identity("carol")}).at
		}, WrongName, []string{"is carol, not bob", "[[client.waypoint]]"}},
		"expired": {func(t *testing.T, a *authority) netip.AddrPort {
			const left = 2 * time.Second
			id := load(t, a.files(collective.Request{Name: "bob", NotBefore: time.Now().Add(-time.Hour), Validity: time.Hour + left}))
			w := startServer(t, served{Identity: id})
			time.Sleep(left + time.Second) // certificates have times in whole seconds
			return w.at
		}, Expired, []string{"is not valid now", "dcol ca issue --reissue bob", "clock"}},
		"other protocol": {func(t *testing.T, a *authority) netip.AddrPort {
			return rawServer(t, a.identity("bob"), "dcol/9", nil)
		}, OtherVersion, []string{"does not speak dcol/2", "update"}},
		"other version": {func(t *testing.T, a *authority) netip.AddrPort {
			return rawServer(t, a.identity("bob"), alpn, func(s *quic.Stream) {
				frame, _ := wire.Append(nil, wire.Hello{Version: 9, Observed: netip.MustParseAddrPort("192.0.2.1:1")})
				s.Write(frame)
			})
		}, OtherVersion, []string{"version 9", "update"}},
		"garbage on the stream": {func(t *testing.T, a *authority) netip.AddrPort {
			return rawServer(t, a.identity("bob"), alpn, func(s *quic.Stream) { s.Write([]byte("HTTP/1.1 200 OK\r\n")) })
		}, Nonsense, []string{"cannot be decoded"}},
		"wrong greeting": {func(t *testing.T, a *authority) netip.AddrPort {
			return rawServer(t, a.identity("bob"), alpn, func(s *quic.Stream) {
				frame, _ := wire.Append(nil, wire.Ping{ID: 1})
				s.Write(frame)
			})
		}, Nonsense, []string{"was not a greeting"}},
		"nameless session": {func(t *testing.T, a *authority) netip.AddrPort {
			return rawServer(t, a.identity("bob"), alpn, func(s *quic.Stream) {
				frame, _ := wire.Append(nil, wire.Hello{Version: wire.Version, Observed: netip.MustParseAddrPort("192.0.2.1:1")})
				s.Write(frame)
			})
		}, Nonsense, []string{"does not name the session"}},
		"no greeting": {func(t *testing.T, a *authority) netip.AddrPort {
			return rawServer(t, a.identity("bob"), alpn, func(*quic.Stream) {})
		}, Nonsense, []string{"opens no session"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			alice := a.identity("alice")
			m := startClient(t, alice, "bob", test.start(t, a))
			p := m.awaitProblem(test.code)
			for _, w := range test.words {
				if !strings.Contains(p.Error(), w) {
					t.Errorf("says %q, not %q", p, w)
				}
			}
			_, err := m.mapping("203.0.113.5:443")
			var down *DownError
			if !errors.Is(err, ErrDown) || !errors.As(err, &down) || down.Waypoint != "bob" {
				t.Errorf("asked all the same: %v", err)
			}
		})
	}
}

// rawServer is a waypoint that calls serve for each session's stream, and does nothing afterwards.
func rawServer(t *testing.T, id *collective.Identity, protocol string, serve func(*quic.Stream)) netip.AddrPort {
	t.Helper()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	tr := &quic.Transport{Conn: socket}
	ln, err := tr.Listen(id.ServerTLS(protocol), quicConfig(1))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			if stream, err := conn.AcceptStream(ctx); err == nil {
				serve(stream)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		tr.Close()
		socket.Close()
	})
	return addrPort(socket.LocalAddr())
}

func TestRevokedBefore(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	aliceFiles := a.files(collective.Request{Name: "alice"})
	alice := load(t, aliceFiles)
	bobFiles := a.files(collective.Request{Name: "bob"})
	g := &granter{}
	w := startServer(t, served{Identity: load(t, bobFiles), Handler: g})
	if _, err := a.ca.Revoke("alice", collective.PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	put(t, a.ca.CRLFile(), bobFiles.CRL)
	m := startClient(t, alice, "bob", w.at)
	if p := m.awaitProblem(Revoked); !strings.Contains(p.Error(), "our certificate was revoked") {
		t.Error(p)
	}
	if up, _ := g.counts(); up != 0 {
		t.Error("a revoked member had a session")
	}
	// When alice has received the list as well, she notices the revocation herself.
	put(t, a.ca.CRLFile(), aliceFiles.CRL)
	m.NetworkChanged()
	if p := m.awaitProblem(OwnIdentity); !strings.Contains(p.Error(), aliceFiles.Certificate) {
		t.Error(p)
	}
}

// Both sides end an open session when they receive a list that revokes the other.
func TestRevokedDuring(t *testing.T) {
	for _, who := range []string{"client", "waypoint"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			files := map[string]collective.Files{
				"client": a.files(collective.Request{Name: "alice"}), "waypoint": a.files(collective.Request{Name: "bob"}),
			}
			g := &granter{}
			w := startServer(t, served{Identity: load(t, files["waypoint"]), Handler: g})
			m := startClient(t, load(t, files["client"]), "bob", w.at)
			m.awaitUp()
			m.mustMap("203.0.113.5:443")
			name, other := "alice", "waypoint"
			if who == "waypoint" {
				name, other = "bob", "client"
			}
			if _, err := a.ca.Revoke(name, collective.KeyCompromise); err != nil {
				t.Fatal(err)
			}
			put(t, a.ca.CRLFile(), files[other].CRL)
			m.awaitProblem(Revoked)
			if _, err := m.mapping("203.0.113.5:443"); !errors.Is(err, ErrDown) {
				t.Errorf("still mapped: %v", err)
			}
		})
	}
}

func TestExpiredDuring(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	files := a.files(collective.Request{Name: "alice", NotBefore: time.Now().Add(-time.Hour), Validity: time.Hour + 3*time.Second})
	w := startServer(t, served{Identity: a.identity("bob")})
	m := startClient(t, load(t, files), "bob", w.at)
	m.awaitUp()
	// The problem is our own certificate, whether the waypoint or we notice it first.
	if p := m.awaitProblem(OwnIdentity); !strings.Contains(p.Error(), "dcol ca issue --reissue") {
		t.Error(p)
	}
	// A new certificate is used without a restart.
	renewed := a.files(collective.Request{Name: "alice"})
	put(t, renewed.Key, files.Key)
	put(t, renewed.Certificate, files.Certificate)
	m.NetworkChanged()
	m.awaitUp()
}

func TestStopAndStart(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	bob := a.identity("bob")
	w := startServer(t, served{Identity: bob})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	w.stop()
	m.awaitProblem(Stopping)
	startServer(t, served{Identity: bob, Listen: w.at.String()})
	if s := m.awaitUp(); s.Sessions != 2 {
		t.Errorf("%d sessions", s.Sessions)
	}
	m.mustMap("203.0.113.5:443")
}

// A crashed waypoint closes no sessions. When it runs again, it resets sessions that it does not know.
func TestCrashAndRestart(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	bob := a.identity("bob")
	w := startServer(t, served{Identity: bob})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	w.crash()
	startServer(t, served{Identity: bob, Listen: w.at.String()})
	m.awaitProblem(Restarted)
	m.awaitUp()
	m.mustMap("203.0.113.5:443")
}

func TestDeadWaypointIsNoticed(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	r := startRelay(t, w.at)
	m := startClient(t, a.identity("alice"), "bob", r.at)
	m.awaitUp()
	waiting := make(chan error, 1)
	r.cut.Store(true)
	go func() { _, err := m.mapping("203.0.113.5:443"); waiting <- err }()
	if p := m.awaitProblem(Lost); !strings.Contains(p.Error(), "stopped answering") {
		t.Error(p)
	}
	var down *DownError
	if err := <-waiting; !errors.As(err, &down) || down.Problem.Code != Lost {
		t.Errorf("the request under way got %v", err)
	}
	r.cut.Store(false)
	m.awaitUp()
}

func TestNoRoute(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	inNamespace(t, func(t *testing.T) {
		a := newAuthority(t)
		m := startClient(t, a.identity("alice"), "bob", netip.MustParseAddrPort("192.0.2.7:45672"))
		if p := m.awaitProblem(NoRoute); !strings.Contains(p.Error(), "network is unreachable") || !strings.Contains(p.Error(), "ip route get 192.0.2.7") {
			t.Error(p)
		}
	})
}

func TestListenFaults(t *testing.T) {
	a := newAuthority(t)
	bob := a.identity("bob")
	w := startServer(t, served{Identity: bob})
	for listen, words := range map[string]string{
		w.at.String(): "another agent may run here",
		"45672":       "write it like",
	} {
		if s, err := Listen(ServerConfig{Identity: bob, Listen: listen, Limits: DefaultLimits(), Log: quiet()}); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, %v", listen, s, err)
		}
	}
	if _, err := Listen(ServerConfig{Identity: bob, Listen: "127.0.0.1:0", Log: quiet()}); err == nil {
		t.Error("listens without limits")
	}
}
