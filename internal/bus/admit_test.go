package bus

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/detour-collective/dcol/internal/collective"
)

func TestWhoGetsIn(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	tryAsStranger(t, w, s.Endpoint())

	// A connection with a revoked certificate fails at TLS, whatever the JWT is.
	gone := w.identity("gone")
	if _, err := w.ca.Revoke("gone", collective.PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	hub := w.files(collective.Request{Name: "hub", Reissue: true}) // with the new revocation list
	w.hub = w.load(hub)
	strict := w.serve(t.TempDir(), "127.0.0.1:0")
	if _, err := w.dialRaw(gone, w.token(gone), gone.Sign, strict.Endpoint()); err == nil {
		t.Error("a revoked certificate got in")
	}
}

// tryAsStranger tries to connect without being a member.
func tryAsStranger(t *testing.T, w *world, e Endpoint) {
	alice, bob := w.identity("alice"), w.identity("stranger-bob")
	if r, err := w.dialRaw(alice, w.token(alice), alice.Sign, e); err != nil {
		t.Fatal("alice herself: ", err)
	} else {
		r.Close()
	}

	other := newWorld(t)
	foreign := other.identity("alice")
	for name, try := range map[string]func() error{
		"another collective's certificate": func() error {
			_, err := w.dialRaw(foreign, w.token(alice), alice.Sign, e)
			return err
		},
		"another collective's JWT": func() error {
			_, err := w.dialRaw(alice, other.token(alice), alice.Sign, e)
			return err
		},
		"no JWT": func() error {
			_, err := w.dialRaw(alice, "", alice.Sign, e)
			return err
		},
		"another member's JWT, signing with the own key": func() error {
			_, err := w.dialRaw(bob, w.token(alice), bob.Sign, e)
			return err
		},
		"no signature": func() error {
			_, err := w.dialRaw(alice, w.token(alice), func([]byte) []byte { return nil }, e)
			return err
		},
		"a JWT that alice signed herself": func() error {
			_, err := w.dialRaw(alice, selfMade(t, alice), alice.Sign, e)
			return err
		},
		"a user name and a password": func() error {
			_, err := nats.Connect("nats://"+e.Address, nats.UserInfo("hub", "x"), nats.NoReconnect(), nats.IgnoreDiscoveredServers(),
				nats.SetCustomDialer(newDialer(alice, noJWT, e)))
			return err
		},
	} {
		if err := try(); err == nil {
			t.Errorf("%s: got in", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}

	// A client without a certificate receives not a single byte.
	conn, err := net.Dial("tcp", e.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 100)); n > 0 {
		t.Errorf("the server speaks to anybody (%v)", err)
	}
	bare, err := tls.Dial("tcp", e.Address, &tls.Config{InsecureSkipVerify: true})
	if err == nil {
		bare.SetDeadline(time.Now().Add(5 * time.Second))
		if n, err := bare.Read(make([]byte, 100)); n > 0 {
			t.Errorf("the server speaks to who has no certificate (%v)", err)
		}
		bare.Close()
	}
}

// selfMade returns a JWT of a bus that mallory made up, with an account of the same name.
func selfMade(t *testing.T, id *collective.Identity) string {
	a, err := InitAuthority(t.TempDir(), "test collective")
	if err != nil {
		t.Fatal(err)
	}
	token, err := a.MemberJWT(id.Name(), id.PublicKey(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestWrongServer: a member finds another member at the address of its server.
func TestWrongServer(t *testing.T) {
	w := newWorld(t)
	right := w.hub
	w.hub = w.identity("mallory")
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	w.hub = right
	e := s.Endpoint()
	e.Name = "hub"
	alice := w.member(w.identity("alice"), nothing, e)
	eventually(t, "alice says why", 10*time.Second, func() bool {
		err := alice.State().Err
		return err != nil && strings.Contains(err.Error(), "not hub")
	})
	if alice.State().Connected {
		t.Error("alice took mallory for hub")
	}
}

func TestNonceIsNothingElse(t *testing.T) {
	w := newWorld(t)
	l := &link{config: Config{Identity: w.hub, Log: quiet()}}
	nonce := []byte("W9VwHIHsnHzYiHM")
	if sig, err := l.signNonce(nonce); err != nil || !ed25519.Verify(w.hub.PublicKey(), nonce, sig) {
		t.Fatal(err)
	}
	for _, evil := range []string{"", "dcol record 1\n{}", strings.Repeat("A", 65), "abc def", "x\x00"} {
		if sig, err := l.signNonce([]byte(evil)); len(sig) > 0 || err != nil {
			t.Errorf("signed %q, %v", evil, err)
		}
	}
}

// TestExpiry: a member is disconnected when its JWT expires, and reconnects with a new one.
func TestExpiry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	id := w.identity("alice")
	var life atomic.Int64
	life.Store(int64(2 * time.Second))
	c := w.config(id, s.Endpoint())
	c.JWT = func() (string, error) {
		return w.authority.MemberJWT("alice", id.PublicKey(), time.Now().Add(time.Duration(life.Load())))
	}
	alice, err := Connect(c, nothing)
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	eventually(t, "alice is in", 5*time.Second, func() bool { return alice.State().Connects == 1 })
	life.Store(int64(time.Hour))
	eventually(t, "alice was cut and is back", 20*time.Second, func() bool { s := alice.State(); return s.Connected && s.Connects >= 2 })

	old, err := w.authority.MemberJWT("alice", id.PublicKey(), time.Now().Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if _, err := w.dialRaw(id, old, id.Sign, s.Endpoint()); err == nil {
		t.Error("an expired JWT got in")
	}
	if _, err := w.authority.MemberJWT("alice", id.PublicKey(), time.Now().Add(-time.Second)); !errors.Is(err, collective.ErrExpired) {
		t.Errorf("made a JWT that has ended: %v", err)
	}
	if _, err := w.authority.MemberJWT("*", id.PublicKey(), time.Now().Add(time.Hour)); err == nil {
		t.Error("made a JWT for everybody")
	}
}

func TestExpulsion(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	expulsion(t, w, s.SetAccount, s.Endpoint())
}

// expulsion checks that an expelled member is disconnected within a second, and cannot connect until it is admitted
// again.
func expulsion(t *testing.T, w *world, setAccount func(context.Context, string) error, e Endpoint) (outcast *collective.Identity, old string) {
	id, bobID := w.identity("alice-to-go"), w.identity("bob-to-stay")
	old = w.token(id)
	c := w.config(id, e)
	var mu sync.Mutex
	token := old
	c.JWT = func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		return token, nil
	}
	alice, err := Connect(c, nothing)
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	bob := w.member(bobID, nothing, e)
	eventually(t, "both are in", 10*time.Second, func() bool { return alice.State().Connected && bob.State().Connected })

	account, err := w.authority.Revoke(id.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	if err := setAccount(within(t, 10*time.Second), account); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, "alice is cut", time.Second, func() bool { return !alice.State().Connected })
	t.Logf("cut after %v: %v", took, alice.State().Err)
	time.Sleep(3 * time.Second) // she tries again meanwhile
	if st := alice.State(); st.Connected || st.Connects != 1 || !errors.Is(st.Err, ErrNotLetIn) {
		t.Fatalf("alice is in again, or does not know why not: %+v", st)
	}
	if _, err := w.dialRaw(id, old, id.Sign, e); !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) {
		t.Errorf("the old JWT: %v", err)
	}
	if st := bob.State(); !st.Connected || st.Connects != 1 {
		t.Errorf("bob was cut, too: %+v", st)
	}

	mu.Lock()
	token = w.token(id)
	mu.Unlock()
	eventually(t, "alice is taken back with a new JWT", 90*time.Second, func() bool { return alice.State().Connected })
	return id, old
}

// A member that was revoked while it was not connected learns that it is not admitted, and not only that it is not
// connected.
func TestRevokedWhileAway(t *testing.T) {
	for what, revoke := range map[string]func(*world, *collective.Identity){
		"certificate": func(w *world, gone *collective.Identity) {
			if _, err := w.ca.Revoke(gone.Name(), collective.PrivilegeWithdrawn); err != nil {
				w.t.Fatal(err)
			}
			w.hub = w.load(w.files(collective.Request{Name: "hub", Reissue: true})) // with the new revocation list
		},
		"JWT": func(w *world, gone *collective.Identity) {
			if _, err := w.authority.Revoke(gone.PublicKey()); err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.serve(t.TempDir(), "127.0.0.1:0")
			gone := w.identity("gone")
			token := w.token(gone)
			c := w.config(gone, s.Endpoint())
			c.JWT = func() (string, error) { return token, nil }
			told := make(chan State, 64)
			c.Changed = func(st State) { told <- st }
			m, err := Connect(c, nothing)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.Close)
			eventually(t, "connected", 10*time.Second, func() bool { return m.State().Connected })
			s.Close()
			eventually(t, "not connected", 10*time.Second, func() bool { return !m.State().Connected })
			revoke(w, gone)
			w.serve(t.TempDir(), s.Endpoint().Address)
			for {
				select {
				case st := <-told:
					if errors.Is(st.Err, ErrNotLetIn) {
						return
					}
				case <-time.After(15 * time.Second):
					t.Fatalf("it was told nothing: %+v", m.State())
				}
			}
		})
	}
}

// Cut closes all connections of a member, and nobody else's. A member whose certificate is still valid reconnects.
func TestCut(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	alice, bob := w.member(w.identity("alice"), nothing, s.Endpoint()), w.member(w.identity("bob"), nothing, s.Endpoint())
	eventually(t, "both are in", 10*time.Second, func() bool { return alice.State().Connected && bob.State().Connected })
	s.Cut("alice")
	eventually(t, "alice is cut and comes back", 10*time.Second, func() bool { st := alice.State(); return st.Connected && st.Connects == 2 })
	if st := bob.State(); !st.Connected || st.Connects != 1 {
		t.Errorf("bob was cut, too: %+v", st)
	}
	s.Cut("nobody")
}
