package session

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// rawClient is a member that can send anything, after its statement on the session.
func rawClient(t testing.TB, id *collective.Identity, at netip.AddrPort) *outgoing {
	t.Helper()
	o := greetedClient(t, id, at)
	o.say(t, o.attestation)
	return o
}

// greetedClient is a member that has not sent its statement.
func greetedClient(t testing.TB, id *collective.Identity, at netip.AddrPort) *outgoing {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	o, _, err := dial(ctx, ClientConfig{Identity: id, Name: "bob", Addr: at, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeLine(o.conn, closeDone, "")
		o.close()
	})
	o.stream.SetDeadline(time.Now().Add(20 * time.Second))
	return o
}

func (o *outgoing) say(t testing.TB, messages ...wire.Message) {
	t.Helper()
	var stream []byte
	for _, m := range messages {
		var err error
		if stream, err = wire.Append(stream, m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.stream.Write(stream); err != nil {
		t.Fatal(err)
	}
}

func (o *outgoing) hear(t testing.TB) wire.Message {
	t.Helper()
	m, err := o.decoder.Next()
	if err != nil {
		t.Fatalf("%v (%v)", err, context.Cause(o.conn.Context()))
	}
	return m
}

// closedWith waits for the waypoint to end the session.
func (o *outgoing) closedWith(t testing.TB, code quic.ApplicationErrorCode) {
	t.Helper()
	select {
	case <-o.conn.Context().Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the waypoint keeps the session")
	}
	var app *quic.ApplicationError
	if err := context.Cause(o.conn.Context()); !errors.As(err, &app) || !app.Remote || app.ErrorCode != code {
		t.Fatalf("closed with %v, want code %d", err, code)
	}
}

func request(id uint64) wire.MapRequest {
	return wire.MapRequest{ID: id, Server: netip.MustParseAddrPort("203.0.113.5:443"), Proposed: 443}
}

func TestFloodIsRefused(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	limits := DefaultLimits()
	limits.RequestRate, limits.RequestBurst = 0.001, 20
	w := startServer(t, served{Identity: a.identity("bob"), Limits: limits})
	alice := a.identity("alice")
	count := func(o *outgoing, n int) (granted int) {
		for i := range n {
			o.say(t, request(uint64(i+1)))
		}
		for range n {
			switch m := o.hear(t).(type) {
			case wire.MapGrant:
				granted++
			case wire.Refusal:
				if m.Code != wire.RateLimited || m.RetryAfter <= 0 {
					t.Errorf("refused: %v", &m)
				}
			}
		}
		return granted
	}
	if got := count(rawClient(t, alice, w.at), 30); got != 20 {
		t.Errorf("%d of 30 granted, want 20", got)
	}
	// Another session of the same member shares its allowance. Another member has its own.
	if got := count(rawClient(t, alice, w.at), 5); got != 0 {
		t.Errorf("%d granted to the member's next session", got)
	}
	if got := count(rawClient(t, a.identity("carol"), w.at), 5); got != 5 {
		t.Errorf("%d of 5 granted to another member", got)
	}
}

func TestOutstandingIsBounded(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	release := make(chan struct{})
	g := &granter{decide: func(ctx context.Context, _ Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return wire.MapGrant{Port: 1, Lease: time.Minute}, nil
	}}
	limits := DefaultLimits()
	limits.Outstanding = 8
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g, Limits: limits})
	o := rawClient(t, a.identity("alice"), w.at)
	for i := range 12 {
		o.say(t, request(uint64(i+1)))
	}
	busy := map[uint64]bool{}
	for range 4 {
		m, ok := o.hear(t).(wire.Refusal)
		if !ok || m.Code != wire.Busy {
			t.Fatalf("heard %+v", m)
		}
		busy[m.ID] = true
	}
	// A waiting request does not delay other messages.
	o.say(t, wire.Ping{ID: 99})
	if m, ok := o.hear(t).(wire.Pong); !ok || m.ID != 99 || m.Observed.Addr() != netip.MustParseAddr("127.0.0.1") {
		t.Fatalf("heard %+v", m)
	}
	close(release)
	for range 8 {
		m, ok := o.hear(t).(wire.MapGrant)
		if !ok || busy[m.ID] {
			t.Fatalf("heard %+v", m)
		}
	}
}

func TestNewestSessionsWin(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	limits := DefaultLimits()
	limits.Sessions = 2
	w := startServer(t, served{Identity: a.identity("bob"), Limits: limits})
	alice := a.identity("alice")
	first := startClient(t, alice, "bob", w.at)
	first.awaitUp()
	second := rawClient(t, alice, w.at)
	other := rawClient(t, a.identity("carol"), w.at)
	third := rawClient(t, alice, w.at)
	if p := first.awaitProblem(Displaced); !strings.Contains(p.Error(), "use this certificate") {
		t.Error(p)
	}
	for _, o := range []*outgoing{second, third, other} {
		o.say(t, request(1))
		if m, ok := o.hear(t).(wire.MapGrant); !ok {
			t.Errorf("heard %+v", m)
		}
	}
}

func TestWhatIsNotUnderstood(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	alice := a.identity("alice")

	o := rawClient(t, alice, w.at)
	for name, bytes := range map[string]string{
		"unknown type":       "\x00\x04\xc8\xa1\x01\x07",
		"request for port 0": "\x00\x0c\x02\xa2\x01\x07\x02\x46\xc0\x00\x02\x07\x00\x00",
	} {
		if _, err := o.stream.Write([]byte(bytes)); err != nil {
			t.Fatal(err)
		}
		if m, ok := o.hear(t).(wire.Refusal); !ok || m.Code != wire.Malformed || m.ID != 7 {
			t.Errorf("%s: heard %+v", name, m)
		}
	}
	o.say(t, wire.Pong{ID: 1, Observed: w.at})
	if m, ok := o.hear(t).(wire.Refusal); !ok || m.Code != wire.Malformed {
		t.Errorf("a pong: heard %+v", m)
	}
	o.say(t, request(8))
	if m, ok := o.hear(t).(wire.MapGrant); !ok || m.ID != 8 {
		t.Errorf("after all that: heard %+v", m)
	}
	if _, err := o.stream.Write([]byte{0xff, 0xff, 1}); err != nil {
		t.Fatal(err)
	}
	o.closedWith(t, closeProtocol)
}

// A client that sends a wrong greeting, or none, is disconnected and never counts as a session.
func TestGreetings(t *testing.T) {
	a := newAuthority(t)
	alice := a.identity("alice")
	for name, test := range map[string]struct {
		say  func(*quic.Stream)
		code quic.ApplicationErrorCode
	}{
		"other version": {func(s *quic.Stream) { b, _ := wire.Append(nil, wire.Hello{Version: 9}); s.Write(b) }, closeVersion},
		"request first": {func(s *quic.Stream) { b, _ := wire.Append(nil, request(1)); s.Write(b) }, closeProtocol},
		"garbage":       {func(s *quic.Stream) { s.Write([]byte("\xff\xffGET / HTTP/1.1")) }, closeProtocol},
		"half a word":   {func(s *quic.Stream) { s.Write([]byte{0}) }, closeSilent},
		"silence":       {nil, closeSilent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &granter{}
			w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
			socket, err := net.ListenUDP("udp4", nil)
			if err != nil {
				t.Fatal(err)
			}
			o := &outgoing{socket: &clientSocket{}, transport: &quic.Transport{Conn: socket}}
			t.Cleanup(func() { o.transport.Close(); socket.Close() })
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if o.conn, err = o.transport.Dial(ctx, net.UDPAddrFromAddrPort(w.at), alice.ClientTLS(alpn, "bob"), &quic.Config{KeepAlivePeriod: time.Second}); err != nil {
				t.Fatal(err)
			}
			if test.say != nil {
				stream, err := o.conn.OpenStream()
				if err != nil {
					t.Fatal(err)
				}
				test.say(stream)
			}
			o.closedWith(t, test.code)
			if up, down := g.counts(); up != 0 || down != 0 {
				t.Errorf("%d sessions up, %d down", up, down)
			}
		})
	}
}

// A client that sends requests and never reads is disconnected, because it must not fill the waypoint's memory.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	limits := DefaultLimits()
	limits.RequestRate, limits.RequestBurst = 1e6, 1e6
	g := &granter{}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g, Limits: limits})
	o := rawClient(t, a.identity("alice"), w.at)
	var batch []byte
	for i := range 1000 {
		batch, _ = wire.Append(batch, request(uint64(i)))
	}
	for range 1000 {
		if _, err := o.stream.Write(batch); err != nil {
			break
		}
	}
	o.closedWith(t, closeSlow)
	w.stop()
	if up, down := g.counts(); up != 1 || down != 1 {
		t.Errorf("%d sessions up, %d down", up, down)
	}
}

// A waypoint that is slow with one request answers the others. The client can stop waiting for it.
func TestSlowWaypoint(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	g := &granter{decide: func(ctx context.Context, _ Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
		if r.Proposed == 1 {
			<-ctx.Done()
		}
		return wire.MapGrant{Port: r.Proposed, Lease: time.Minute}, nil
	}}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := m.Map(ctx, netip.MustParseAddrPort("203.0.113.5:1"), 1, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the slow request: %v", err)
	}
	m.mustMap("203.0.113.5:443")
}

// Whatever the handler returns, the request is answered and the session continues.
func TestHandlerAnswers(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	g := &granter{decide: func(_ context.Context, p Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
		switch r.Proposed {
		case 25:
			return wire.MapGrant{}, &wire.Refusal{ID: 12345, Code: wire.DestinationForbidden, Message: "port 25"}
		case 1:
			return wire.MapGrant{}, nil
		}
		return wire.MapGrant{ID: 54321, Port: 7, Lease: time.Hour, Client: netip.MustParseAddr("192.0.2.1")}, nil
	}}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	_, err := m.mapping("203.0.113.5:25")
	var refusal *wire.Refusal
	if !errors.As(err, &refusal) || refusal.Code != wire.DestinationForbidden || refusal.Message != "port 25" {
		t.Errorf("forbidden: %v", err)
	}
	if _, err := m.mapping("203.0.113.5:1"); !errors.Is(err, &wire.Refusal{Code: wire.Internal}) {
		t.Errorf("a grant of nothing: %v", err)
	}
	// The handler cannot grant to another address than the session's.
	if g := m.mustMap("203.0.113.5:80"); g.Client != w.at.Addr() || g.Port != 7 {
		t.Errorf("granted %+v", g)
	}
}

// At a high rate of handshakes, clients must prove their addresses first, and succeed all the same.
func TestManyHandshakes(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	alice := a.identity("alice")
	verified := 0
	ask := w.transport.VerifySourceAddress
	for range freeHandshakesBurst + 50 {
		if ask(net.UDPAddrFromAddrPort(w.at)) {
			verified++
		}
	}
	if verified == 0 {
		t.Fatal("no handshake has to prove its address")
	}
	for range 10 {
		o := rawClient(t, alice, w.at)
		o.say(t, wire.Ping{ID: 1})
		if m, ok := o.hear(t).(wire.Pong); !ok {
			t.Fatalf("heard %+v", m)
		}
	}
}
