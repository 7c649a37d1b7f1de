package bus

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/detour-collective/dcol/internal/collective"
)

// raw is a member with a client that can send anything.
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

// dialRaw connects with the certificate of one member, and a JWT and key that may be another's.
func (w *world) dialRaw(certificate *collective.Identity, token string, sign func([]byte) []byte, e Endpoint, options ...nats.Option) (*raw, error) {
	r := &raw{}
	jwt := func() (string, error) { return token, nil }
	nc, err := nats.Connect("nats://"+e.Address, append([]nats.Option{
		nats.SetCustomDialer(newDialer(certificate, jwt, e)),
		nats.UserJWT(jwt, func(n []byte) ([]byte, error) { return sign(n), nil }),
		nats.ErrorHandler(r.complaint), nats.NoReconnect(), nats.IgnoreDiscoveredServers(),
	}, options...)...)
	if err != nil {
		return nil, err
	}
	w.t.Cleanup(nc.Close)
	r.Conn = nc
	return r, nil
}

func newDialer(id *collective.Identity, jwt func() (string, error), e Endpoint) *dialer {
	return &dialer{id: id, names: map[string]string{e.Address: e.Name}, jwt: jwt}
}

func noJWT() (string, error) { return "", nil }

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

// confined tries everything that a member must not be able to do.
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

	// An answer must not go to a subject that mallory chooses.
	before := co.Counts()
	for _, reply := range []string{"dcol.all.records", "dcol.to.bob.check", "_INBOX.bob.x", "$KV.records.bob", "_INBOX.malloryx.y"} {
		if err := m.PublishRequest("dcol.from.mallory.x", reply, []byte("evil")); err != nil {
			t.Fatal(err)
		}
	}
	m.Flush()
	eventually(t, "the coordinator sees through it", 5*time.Second, func() bool { return co.Counts().Foreign == before.Foreign+5 })

	// Larger messages and more subscriptions than a member may have.
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

	// Other members are not affected.
	if answer, err := bob.Ask(ctx, "x", []byte("y")); err != nil || string(answer) != "bob x y" {
		t.Errorf("%q, %v", answer, err)
	}
}

// sayLarge speaks NATS's protocol without a client library, which would respect the limit. It returns what the server
// sends until it ends the connection.
func (w *world) sayLarge(id *collective.Identity, e Endpoint) string {
	w.t.Helper()
	conn, err := newDialer(id, noJWT, e).Dial("tcp", e.Address)
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

// TestConnectionsOfOneMember: if a member opens too many connections, its oldest are closed, but nobody else's.
func TestConnectionsOfOneMember(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	bob := w.member(w.identity("bob"), nothing, s.Endpoint())
	eventually(t, "bob is in", 5*time.Second, func() bool { return bob.State().Connected })
	mallory := w.identity("mallory")
	var all []*raw
	for range 3 * maxConnections {
		r, err := w.dialRaw(mallory, w.token(mallory), mallory.Sign, s.Endpoint())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	eventually(t, "the oldest are closed", 5*time.Second, func() bool {
		return all[len(all)-maxConnections-1].IsClosed() && s.Connections() == maxConnections+1
	})
	for i, r := range all {
		if kept := i >= len(all)-maxConnections; r.IsConnected() != kept {
			t.Errorf("connection %d: connected %v", i, r.IsConnected())
		}
	}
	if st := bob.State(); st.Connects != 1 || !st.Connected {
		t.Errorf("bob: %+v", st)
	}
	// Connections that the member itself closes do not count.
	last := all[len(all)-1]
	for range 2 * maxConnections {
		r, err := w.dialRaw(mallory, w.token(mallory), mallory.Sign, s.Endpoint())
		if err != nil {
			t.Fatal(err)
		}
		for _, old := range all[len(all)-maxConnections : len(all)-1] {
			old.Close()
		}
		r.Close()
		eventually(t, "it is closed", 5*time.Second, func() bool { return s.Connections() == 2 })
	}
	if !last.IsConnected() {
		t.Error("closed for connections that were closed already")
	}
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
