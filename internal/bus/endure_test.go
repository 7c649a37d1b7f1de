package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/detour-collective/dcol/internal/collective"
)

// TestRenewal replaces the member's certificate and then the server's during operation. The old ones are revoked, so
// only the new ones can be in use.
func TestRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hubFiles, aliceFiles := w.files(collective.Request{Name: "hub", Reissue: true}), w.files(collective.Request{Name: "alice"})
	w.hub = w.load(hubFiles)
	id := w.load(aliceFiles)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	w.coordinator(echo(), s.Endpoint())
	alice := w.member(id, nothing, s.Endpoint())
	ask := func() error {
		_, err := alice.Ask(within(t, 5*time.Second), "x", nil)
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		name  string
		files collective.Files
	}{{"alice", aliceFiles}, {"hub", hubFiles}} {
		if _, err := w.ca.Revoke(of.name, collective.Superseded); err != nil {
			t.Fatal(err)
		}
		renewed := w.files(collective.Request{Name: of.name, Reissue: true})
		copyFile(t, renewed.Key, of.files.Key)
		copyFile(t, renewed.Certificate, of.files.Certificate)
		for _, f := range []collective.Files{aliceFiles, hubFiles} {
			copyFile(t, renewed.CRL, f.CRL)
		}
		before := alice.State().Connects
		if err := alice.Reconnect(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "alice is back", 20*time.Second, func() bool { s := alice.State(); return s.Connected && s.Connects > before })
		if err := ask(); err != nil {
			t.Errorf("after the renewal of %s: %v", of.name, err)
		}
	}
}

// TestManyServersListed: members find the server that works.
func TestManyServersListed(t *testing.T) {
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	// One server refuses connections, one accepts them and is silent, and one has another name.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing.Close()
	wrong := s.Endpoint()
	wrong.Name = "other"
	wrong.Address = strings.Replace(wrong.Address, "127.0.0.1", "localhost", 1)
	alice := w.member(w.identity("alice"), nothing,
		Endpoint{Name: "dead", Address: refusing.Addr().String()}, Endpoint{Name: "silent", Address: silent.Addr().String()}, wrong, s.Endpoint())
	eventually(t, "alice finds the right one", 30*time.Second, func() bool { return alice.State().Server == "hub" })

	for name, servers := range map[string][]Endpoint{
		"none": nil, "no port": {{Name: "hub", Address: "127.0.0.1"}}, "no name": {{Address: "127.0.0.1:1"}},
	} {
		if _, err := Connect(w.config(w.hub, servers...), nothing); err == nil {
			t.Errorf("connected to %s", name)
		}
	}
	c := w.config(w.hub, s.Endpoint())
	c.JWT = func() (string, error) { return "", errors.New("the file of the JWT is missing") }
	m, err := Connect(c, nothing)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	eventually(t, "what is wrong with the JWT", 10*time.Second, func() bool {
		err := m.State().Err
		return err != nil && strings.Contains(err.Error(), "the file of the JWT is missing")
	})
}

// TestSlowReader: a member that reads nothing is disconnected, and others still get their messages.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	co := w.coordinator(echo(), s.Endpoint())
	var heard atomic.Int64
	bob := w.member(w.identity("bob"), func(Message) { heard.Add(1) }, s.Endpoint())
	if _, err := bob.Ask(within(t, 5*time.Second), "x", nil); err != nil {
		t.Fatal(err)
	}
	id := w.identity("mallory")
	stuck := &stuckDialer{dialer: newDialer(id, noJWT, s.Endpoint())}
	nc, err := nats.Connect("nats://"+s.Endpoint().Address, nats.SetCustomDialer(stuck), nats.NoReconnect(),
		nats.UserJWT(func() (string, error) { return w.token(id), nil }, func(n []byte) ([]byte, error) { return id.Sign(n), nil }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe(allPrefix+">", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	stuck.stick()
	defer stuck.release()

	data := bytes.Repeat([]byte("x"), MaxPayload)
	var sent int64
	for begin := time.Now(); s.Connections() == 3; sent++ {
		if time.Since(begin) > 30*time.Second {
			t.Fatal("mallory is not cut")
		}
		if err := co.TellAll("records", data); err != nil {
			t.Fatal(err)
		}
		eventually(t, "bob hears", 10*time.Second, func() bool { return heard.Load() == sent+1 })
	}
	t.Logf("mallory was cut after %d messages, %d MiB; bob heard them all", sent, sent*MaxPayload>>20)
}

// stuckDialer makes connections that can stop reading.
type stuckDialer struct {
	*dialer
	stuck sync.Mutex
}

func (d *stuckDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.dialer.Dial(network, address)
	return &stuckConn{Conn: conn, d: d}, err
}

func (d *stuckDialer) stick()   { d.stuck.Lock() }
func (d *stuckDialer) release() { d.stuck.Unlock() }

type stuckConn struct {
	net.Conn
	d *stuckDialer
}

func (c *stuckConn) Read(b []byte) (int, error) {
	c.d.stuck.Lock()
	defer c.d.stuck.Unlock()
	// A short deadline lets stick take the lock between two reads.
	for {
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		n, err := c.Conn.Read(b)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			c.d.stuck.Unlock()
			time.Sleep(time.Millisecond)
			c.d.stuck.Lock()
			continue
		}
		return n, err
	}
}

// TestLargeBucket watches slowly, with more data than JetStream keeps in flight.
func TestLargeBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.serve(t.TempDir(), "127.0.0.1:0")
	co := w.coordinator(echo(), s.Endpoint())
	ctx := within(t, 60*time.Second)
	b, err := co.Bucket(ctx, "records", 1)
	if err != nil {
		t.Fatal(err)
	}
	const n = 40 << 20 / MaxPayload
	value := bytes.Repeat([]byte("v"), MaxPayload-1000)
	for i := range n {
		if _, err := b.Put(ctx, fmt.Sprintf("k%d", i), value); err != nil {
			t.Fatal(err)
		}
	}
	watching, stop := context.WithCancel(ctx)
	seen := 0
	err = b.Watch(watching, func(Entry) {
		if seen++; seen%50 == 0 {
			time.Sleep(100 * time.Millisecond) // like a coordinator that checks signatures
		}
	}, stop)
	if seen != n || co.State().Connects != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("saw %d of %d values, %v, %+v", seen, n, err, co.State())
	}
}
