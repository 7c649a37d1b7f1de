package bus

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/detour-collective/dcol/internal/collective"
)

// raw is a member with a client of its own making, that does as it likes.
type raw struct {
	*nats.Conn
	mu       sync.Mutex
	problems []string
}

func (r *raw) complaint(_ *nats.Conn, _ *nats.Subscription, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, err.Error())
}

func (r *raw) refused(subject string) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range r.problems {
			if strings.Contains(strings.ToLower(p), "permissions violation") && strings.Contains(p, `"`+subject+`"`) {
				return true
			}
		}
		return false
	}
}

// dialRaw connects with the certificate of one member, and the JWT and key of maybe another.
func (w *world) dialRaw(certificate *collective.Identity, token string, sign func([]byte) []byte, e Endpoint, options ...nats.Option) (*raw, error) {
	r := &raw{}
	nc, err := nats.Connect("nats://"+e.Address, append([]nats.Option{
		nats.SetCustomDialer(&dialer{id: certificate, names: map[string]string{e.Address: e.Name}}),
		nats.UserJWT(func() (string, error) { return token, nil }, func(n []byte) ([]byte, error) { return sign(n), nil }),
		nats.ErrorHandler(r.complaint), nats.NoReconnect(),
	}, options...)...)
	if err != nil {
		return nil, err
	}
	w.t.Cleanup(nc.Close)
	r.Conn = nc
	return r, nil
}

func (w *world) token(id *collective.Identity) string {
	w.t.Helper()
	token, err := w.authority.MemberJWT(id.Name(), id.PublicKey(), id.Self().NotAfter)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

func TestMemberIsConfined(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	co := w.coordinator(echo(), s.Endpoint())
	confined(t, w, co, s.Endpoint(), 1)
}

// confined tries everything a member must not be able to do.
func confined(t *testing.T, w *world, co *Coordinator, e Endpoint, replicas int) {
	ctx := within(t, 60*time.Second)
	if _, err := co.Bucket(ctx, "records", replicas); err != nil {
		t.Fatal(err)
	}
	bob := w.member(w.identity("bob"), nothing, e)
	mallory := w.identity("mallory")
	m, err := w.dialRaw(mallory, w.token(mallory), mallory.Sign, e, nats.CustomInboxPrefix(inbox("mallory")))
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{
		"dcol.from.bob.records", "dcol.all.records", "dcol.to.bob.check", "dcol.to.mallory.x", "_INBOX.bob.x", "_INBOX.mallory.x",
		"$KV.records.bob", "$JS.API.STREAM.PURGE.KV_records", "$JS.API.INFO", "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.SERVER.PING", "x",
	} {
		if err := m.Publish(subject, []byte("evil")); err != nil {
			t.Fatal(err)
		}
		if err := m.Flush(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "mallory may not publish "+subject, 5*time.Second, m.refused(subject))
	}
	for _, subject := range []string{">", "*", "dcol.>", "dcol.from.>", "dcol.from.mallory.>", "dcol.to.bob.>", "dcol.to.>", "dcol.to.*.x", "_INBOX.>", "_INBOX.bob.>", "_INBOX.*.x", "$KV.>", "$JS.>", "$SYS.>"} {
		sub, err := m.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Flush(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "mallory may not subscribe "+subject, 5*time.Second, m.refused(subject))
		sub.Unsubscribe()
	}
	js, err := jetstream.New(m.Conn)
	if err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := js.KeyValue(brief, "records"); err == nil {
		t.Error("mallory opened the coordinators' bucket")
	}

	// An answer must not go where mallory says.
	before := co.Counts()
	for _, reply := range []string{"dcol.all.records", "dcol.to.bob.check", "_INBOX.bob.x", "$KV.records.bob", "_INBOX.malloryx.y"} {
		if err := m.PublishRequest("dcol.from.mallory.x", reply, []byte("evil")); err != nil {
			t.Fatal(err)
		}
	}
	m.Flush()
	eventually(t, "the coordinator sees through it", 5*time.Second, func() bool { return co.Counts().Foreign == before.Foreign+5 })

	// More than one message may hold, and more subscriptions than a member needs.
	if said := w.sayLarge(mallory, e); !strings.Contains(said, "Maximum Payload Violation") {
		t.Errorf("to a message of %d bytes the server said %q", MaxPayload+1, said)
	}
	many, err := w.dialRaw(mallory, w.token(mallory), mallory.Sign, e)
	if err != nil {
		t.Fatal(err)
	}
	for range maxSubscriptions + 1 {
		if _, err := many.SubscribeSync(allPrefix + ">"); err != nil {
			t.Fatal(err)
		}
	}
	many.Flush()
	eventually(t, "mallory may not subscribe more", 5*time.Second, func() bool {
		many.mu.Lock()
		defer many.mu.Unlock()
		return many.IsClosed() || len(many.problems) > 0 && strings.Contains(many.problems[0], "subscriptions exceeded")
	})

	// Nobody was harmed.
	if answer, err := bob.Ask(ctx, "x", []byte("y")); err != nil || string(answer) != "bob x y" {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestWhoGetsIn(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	strangers(t, w, s.Endpoint())

	// A revoked certificate ends at TLS, whatever the JWT says.
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

// sayLarge speaks NATS's protocol without a client, as that would heed the limit, and returns what the
// server says until it ends the connection.
func (w *world) sayLarge(id *collective.Identity, e Endpoint) string {
	w.t.Helper()
	conn, err := (&dialer{id: id, names: map[string]string{e.Address: e.Name}}).Dial("tcp", e.Address)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	in := bufio.NewReader(conn)
	greeting, err := in.ReadString('\n')
	if err != nil {
		w.t.Fatal(err)
	}
	var info struct{ Nonce string }
	if err := json.Unmarshal([]byte(strings.TrimPrefix(greeting, "INFO ")), &info); err != nil {
		w.t.Fatal(err)
	}
	hello, _ := json.Marshal(map[string]any{"jwt": w.token(id), "sig": base64.RawURLEncoding.EncodeToString(id.Sign([]byte(info.Nonce)))})
	fmt.Fprintf(conn, "CONNECT %s\r\nPUB dcol.from.%s.x %d\r\n", hello, id.Name(), MaxPayload+1)
	conn.Write(make([]byte, MaxPayload+1))
	said, _ := io.ReadAll(in)
	return string(said)
}

// strangers tries to get in without being a member.
func strangers(t *testing.T, w *world, e Endpoint) {
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
			_, err := nats.Connect("nats://"+e.Address, nats.UserInfo("hub", "x"), nats.NoReconnect(),
				nats.SetCustomDialer(&dialer{id: alice, names: map[string]string{e.Address: e.Name}}))
			return err
		},
	} {
		if err := try(); err == nil {
			t.Errorf("%s: got in", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}

	// Without a certificate one hears not a byte.
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

// selfMade is a JWT of a bus that mallory invented, with an account of the same name.
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

// TestWrongServer has a member meet another member where it looks for its server.
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
	l := &link{config: Config{Identity: w.hub}}
	nonce := []byte("W9VwHIHsnHzYiHM")
	if sig, err := l.signNonce(nonce); err != nil || !ed25519.Verify(w.hub.PublicKey(), nonce, sig) {
		t.Fatal(err)
	}
	for _, evil := range []string{"", "dcol record 1\n{}", strings.Repeat("A", 65), "abc def", "x\x00"} {
		if _, err := l.signNonce([]byte(evil)); err == nil {
			t.Errorf("signed %q", evil)
		}
	}
}

// TestExpiry cuts a member when its JWT ends; with a new one it comes back.
func TestExpiry(t *testing.T) {
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

// expulsion cuts a member within a second and keeps it out, until it is taken back.
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

func TestFlood(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	mallory := w.identity("mallory")
	cut := make(chan string, 1)
	h := echo()
	h.Flood = func(member string) {
		account, err := w.authority.Revoke(mallory.PublicKey())
		if err == nil {
			err = s.SetAccount(context.Background(), account)
		}
		if err != nil {
			t.Error(err)
		}
		cut <- member
	}
	co := w.coordinator(h, s.Endpoint())
	bob := w.member(w.identity("bob"), nothing, s.Endpoint())
	m, err := w.dialRaw(mallory, w.token(mallory), mallory.Sign, s.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	flooding := make(chan struct{})
	go func() {
		defer close(flooding)
		for data := make([]byte, 1000); m.Publish("dcol.from.mallory.x", data) == nil; {
			if m.Flush() != nil {
				return
			}
		}
	}()
	asked := 0
	for done := false; !done; asked++ {
		if _, err := bob.Ask(within(t, 5*time.Second), "x", nil); err != nil {
			t.Errorf("bob's request %d: %v", asked, err)
		}
		select {
		case who := <-cut:
			if who != "mallory" {
				t.Errorf("%s was cut", who)
			}
			done = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	<-flooding
	counts := co.Counts()
	if counts.Refused < floodAfter {
		t.Errorf("counts %+v", counts)
	}
	t.Logf("%d requests of bob meanwhile; %+v", asked, counts)
}
