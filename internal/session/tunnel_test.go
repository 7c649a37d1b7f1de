package session

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/session/wire"
)

func (m *member) tunnel(req wire.TunnelRequest) (wire.TunnelGrant, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return m.Tunnel(ctx, req)
}

// The handler gets the request with the client's own address. The client gets the handler's grant, for the session's
// address.
func TestTunnel(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(listen, func(t *testing.T) {
			needAddress(t, listen)
			a := newAuthority(t)
			asked := make(chan wire.TunnelRequest, 1)
			grant := wire.TunnelGrant{
				ID: 54321, Kind: wire.OpenVPN, Client: netip.MustParseAddr("192.0.2.1"), // the handler cannot set these
				Lease: time.Hour, PublicKey: bytes.Repeat([]byte{2}, 32), Port: 51820,
				Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24"), netip.MustParsePrefix("fd09::5/64")}, MTU: 1420,
			}
			g := &granter{tunnel: func(_ context.Context, p Peer, r wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
				if p.Name != "alice" {
					t.Errorf("asked by %+v", p)
				}
				asked <- r
				return grant, nil
			}}
			w := startServer(t, served{Identity: a.identity("bob"), Listen: listen, Handler: g})
			m := startClient(t, a.identity("alice"), "bob", w.at)
			m.awaitUp()
			req := wire.TunnelRequest{
				Kind: wire.WireGuard, PublicKey: bytes.Repeat([]byte{1}, 32),
				Avoid: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, Local: netip.MustParseAddr("192.0.2.1"), // the caller cannot set Local
			}
			got, err := m.tunnel(req)
			if err != nil {
				t.Fatal(err)
			}
			same := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreFields(wire.TunnelGrant{}, "ID"), cmpopts.IgnoreFields(wire.TunnelRequest{}, "ID")}
			req.Local = w.at.Addr()
			if diff := cmp.Diff(req, <-asked, same); diff != "" {
				t.Error(diff)
			}
			want := grant
			want.Kind, want.Client = wire.WireGuard, w.at.Addr()
			if diff := cmp.Diff(want, got, same); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTunnelRefused(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	g := &granter{tunnel: func(_ context.Context, _ Peer, r wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
		if r.Kind == wire.OpenVPN {
			return wire.TunnelGrant{}, &wire.Refusal{Code: wire.NotOffered, Message: "no openvpn here"}
		}
		return wire.TunnelGrant{Key: []byte("too short")}, nil
	}}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
	m := startClient(t, a.identity("alice"), "bob", w.at)
	m.awaitUp()
	var refusal *wire.Refusal
	if _, err := m.tunnel(wire.TunnelRequest{Kind: wire.OpenVPN}); !errors.As(err, &refusal) || refusal.Code != wire.NotOffered || refusal.Message != "no openvpn here" {
		t.Errorf("not offered: %v", err)
	}
	if _, err := m.tunnel(wire.TunnelRequest{Kind: wire.InBand}); !errors.Is(err, &wire.Refusal{Code: wire.Internal}) {
		t.Errorf("a grant that cannot be said: %v", err)
	}
	if _, err := m.tunnel(wire.TunnelRequest{}); err == nil || errors.As(err, &refusal) {
		t.Errorf("a request that cannot be said: %v", err)
	}
	m.mustMap("203.0.113.5:443")
}

// Requests for tunnels count towards the same limits as those for mappings.
func TestTunnelsAreLimited(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	limits := DefaultLimits()
	limits.RequestRate, limits.RequestBurst, limits.Outstanding = 0.001, 4, 2
	g := &granter{tunnel: func(ctx context.Context, _ Peer, _ wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
		<-ctx.Done()
		return wire.TunnelGrant{}, nil
	}}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g, Limits: limits})
	o := rawClient(t, a.identity("alice"), w.at)
	o.say(t, request(1))
	if m, ok := o.hear(t).(wire.MapGrant); !ok {
		t.Fatalf("heard %+v", m)
	}
	for id := uint64(2); id <= 5; id++ {
		o.say(t, wire.TunnelRequest{ID: id, Kind: wire.InBand})
	}
	for _, want := range []wire.Refusal{{ID: 4, Code: wire.Busy}, {ID: 5, Code: wire.RateLimited}} {
		if m, ok := o.hear(t).(wire.Refusal); !ok || m.ID != want.ID || m.Code != want.Code {
			t.Errorf("heard %+v, want %+v", m, want)
		}
	}
}

// otherWaypoint greets, and answers each request with the result of answer. If that is nil, it answers like a waypoint
// that does not know the message.
func otherWaypoint(t *testing.T, a *authority, answer func(wire.Message) wire.Message) netip.AddrPort {
	return rawServer(t, a.identity("bob"), alpn, func(s *quic.Stream) {
		say := func(m wire.Message) {
			frame, err := wire.Append(nil, m)
			if err != nil {
				t.Error(err)
			}
			s.Write(frame)
		}
		say(wire.Hello{Version: wire.Version, Observed: netip.MustParseAddrPort("127.0.0.1:1"), Session: newSessionID()})
		d := wire.NewDecoder(s)
		for {
			m, err := d.Next()
			if err != nil {
				return
			}
			switch m := m.(type) {
			case wire.Ping:
				say(wire.Pong{ID: m.ID, Observed: netip.MustParseAddrPort("127.0.0.1:1")})
			case wire.TunnelRequest:
				if reply := answer(m); reply != nil {
					say(reply)
				} else {
					say(wire.Refusal{ID: m.ID, Code: wire.Malformed, Message: "malformed type 7: unknown message type"})
				}
			}
		}
	})
}

// A waypoint that is too old for tunnels offers none. Answers of another type than requested are rejected.
func TestOtherVersionsOfWaypoints(t *testing.T) {
	client := netip.MustParseAddr("127.0.0.1")
	for name, test := range map[string]struct {
		answer  func(wire.Message) wire.Message
		refusal bool
		words   string
	}{
		"older": {func(wire.Message) wire.Message { return nil }, true, "may be older"},
		"another kind": {func(m wire.Message) wire.Message {
			return wire.TunnelGrant{ID: m.(wire.TunnelRequest).ID, Kind: wire.OpenVPN, Client: client}
		}, false, "granted openvpn"},
		"another grant": {func(m wire.Message) wire.Message {
			return wire.MapGrant{ID: m.(wire.TunnelRequest).ID, Port: 1, Client: client}
		}, false, "wire.MapGrant"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			at := otherWaypoint(t, a, test.answer)
			m := startClient(t, a.identity("alice"), "bob", at)
			m.awaitUp()
			got, err := m.tunnel(wire.TunnelRequest{Kind: wire.InBand})
			if err == nil || !strings.Contains(err.Error(), test.words) || errors.Is(err, &wire.Refusal{Code: wire.NotOffered}) != test.refusal {
				t.Errorf("granted %+v, %v", got, err)
			}
			m.Close()
		})
	}
}

// journal is a handler that records its calls.
type journal struct {
	granter
	mu    sync.Mutex
	lines []string
	// asked receives a value for each requested tunnel. The tunnel is granted when release is closed.
	asked, release chan struct{}
}

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) SessionUp(p Peer)   { j.note("up " + p.Addr.String()) }
func (j *journal) SessionDown(p Peer) { j.note("down " + p.Addr.String()) }
func (j *journal) SessionMoved(from, p Peer) {
	j.note("moved " + from.Addr.String() + " " + p.Addr.String())
}
func (j *journal) MemberLeft(now Peer, from netip.Addr) {
	j.note("left " + from.String() + " for " + now.Addr.String())
}
func (j *journal) Tunnel(_ context.Context, p Peer, _ wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	j.note("asked " + p.Addr.String())
	j.asked <- struct{}{}
	<-j.release
	j.note("granted " + p.Addr.String())
	return wire.TunnelGrant{Lease: time.Minute}, nil
}

// The waypoint learns of a move after the requests from the old address and before those from the new one, once for
// each move, and before the client does.
func TestMovesAreTold(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	j := &journal{asked: make(chan struct{}, 10), release: make(chan struct{})}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: j})
	r := startRelay(t, w.at)
	m := startClient(t, a.identity("alice"), "bob", r.at)
	m.awaitUp()
	first := make(chan error, 1)
	go func() { // like Tunnel, which would repeat the request if it knew that the session has moved
		m.mu.Lock()
		call := m.call
		m.mu.Unlock()
		first <- call.ask(t.Context(), func(id uint64) wire.Message { return wire.TunnelRequest{ID: id, Kind: wire.InBand} }).err
	}()
	<-j.asked
	moved := netip.MustParseAddr("127.0.0.9")
	r.rebind(moved)
	for deadline := time.Now().Add(10 * time.Second); w.live()[0].Addr != moved; {
		if time.Now().After(deadline) {
			t.Fatal("the session did not move")
		}
		time.Sleep(10 * time.Millisecond)
	}
	m.mu.Lock()
	m.call.ping()
	m.mu.Unlock()
	time.Sleep(300 * time.Millisecond) // the ping arrives, and waits for the request
	close(j.release)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	m.await("being at the new address", func(s State) bool { return s.Usable() && s.Observed.Addr() == moved })
	j.note("client knows")
	if g, err := m.tunnel(wire.TunnelRequest{Kind: wire.InBand}); err != nil || g.Client != moved {
		t.Errorf("granted %+v, %v", g, err)
	}
	r.rebind(moved) // another port is not another address
	m.await("being at another port", func(s State) bool { return s.Usable() })
	m.Close()
	w.stop()
	want := []string{
		"up 127.0.0.1", "asked 127.0.0.1", "granted 127.0.0.1", "moved 127.0.0.1 127.0.0.9",
		"client knows", "asked 127.0.0.9", "granted 127.0.0.9", "down 127.0.0.9",
	}
	if diff := cmp.Diff(want, j.lines); diff != "" {
		t.Error(diff)
	}
}
