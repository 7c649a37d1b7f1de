package session

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// The handler gets a proof that anybody can verify with the collective's roots.
func TestSessionsAreProven(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	g := &granter{}
	w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
	alice := a.identity("alice")
	m := startClient(t, alice, "bob", w.at)
	m.awaitUp()
	m.mustMap("203.0.113.5:443")

	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.up) != 1 || g.up[0].Proof == nil {
		t.Fatalf("sessions up: %+v", g.up)
	}
	p := g.up[0].Proof
	trust, err := collective.ReadTrust(a.ca.CertFile(), "")
	if err != nil {
		t.Fatal(err)
	}
	who, err := trust.Verify(p.Chain, time.Now())
	if err != nil || who.Name != "alice" || who.Serial != p.Serial || who.Collective != p.Collective {
		t.Errorf("the chain is that of %+v, %v", who, err)
	}
	if p.Member != "alice" || p.Waypoint != "bob" || p.Session.IsZero() || time.Since(p.Time) > time.Minute {
		t.Errorf("stated %+v", p.Statement)
	}
	if !p.SignedBy(who.Key[:], p.Signature) {
		t.Error("the signature is not good")
	}
	for name, change := range map[string]func(*wire.Statement){
		"collective": func(s *wire.Statement) { s.Collective = "other" },
		"member":     func(s *wire.Statement) { s.Member = "bob" },
		"serial":     func(s *wire.Statement) { s.Serial = "00" },
		"waypoint":   func(s *wire.Statement) { s.Waypoint = "carol" },
		"session":    func(s *wire.Statement) { s.Session[3] ^= 1 },
		"time":       func(s *wire.Statement) { s.Time = s.Time.Add(time.Millisecond) },
		"boundary":   func(s *wire.Statement) { s.Member, s.Serial = s.Member+s.Serial[:1], s.Serial[1:] },
	} {
		s := p.Statement
		if change(&s); s.SignedBy(who.Key[:], p.Signature) {
			t.Errorf("the signature is good for another %s", name)
		}
	}
}

// Without a valid statement on this very session, nothing is granted, and the handler is told nothing.
func TestSessionsWithoutProof(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	alice, carol := a.identity("alice"), a.identity("carol")
	signed := func(o *outgoing, by *collective.Identity, change func(*wire.Statement)) wire.Attestation {
		s := wire.Statement{Collective: "test", Member: "alice", Serial: alice.Self().Serial, Waypoint: "bob", Session: o.hello.Session,
			Time: time.Now().UTC().Truncate(time.Millisecond)}
		change(&s)
		return wire.Attestation{Time: s.Time, Signature: by.Sign(s.Message())}
	}
	as := func(change func(*wire.Statement)) func(*outgoing) wire.Message {
		return func(o *outgoing) wire.Message { return signed(o, alice, change) }
	}
	var earlier wire.Attestation // of an earlier session
	for name, first := range map[string]func(*outgoing) wire.Message{
		"request":          func(*outgoing) wire.Message { return request(1) },
		"ping":             func(*outgoing) wire.Message { return wire.Ping{ID: 1} },
		"second greeting":  func(*outgoing) wire.Message { return wire.Hello{Version: wire.Version} },
		"another's key":    func(o *outgoing) wire.Message { return signed(o, carol, func(*wire.Statement) {}) },
		"replayed":         func(*outgoing) wire.Message { return earlier },
		"another session":  as(func(s *wire.Statement) { s.Session[0] ^= 1 }),
		"another waypoint": as(func(s *wire.Statement) { s.Waypoint = "carol" }),
		"another member":   as(func(s *wire.Statement) { s.Member = "carol" }),
		"another serial":   as(func(s *wire.Statement) { s.Serial = carol.Self().Serial }),
		"another time":     func(o *outgoing) wire.Message { at := o.attestation; at.Time = at.Time.Add(time.Second); return at },
		"clock behind":     as(func(s *wire.Statement) { s.Time = s.Time.Add(-wire.MaxClockOff - time.Minute) }),
		"clock ahead":      as(func(s *wire.Statement) { s.Time = s.Time.Add(wire.MaxClockOff + time.Minute) }),
	} {
		t.Run(name, func(t *testing.T) {
			g := &granter{}
			g.decide = func(_ context.Context, _ Peer, r wire.MapRequest) (wire.MapGrant, *wire.Refusal) {
				if r.Server.Port() == 1 {
					t.Error("a request was decided on")
				}
				return wire.MapGrant{Port: 443, Lease: time.Minute}, nil
			}
			w := startServer(t, served{Identity: a.identity("bob"), Handler: g})
			before := rawClient(t, alice, w.at)
			before.say(t, request(1))
			before.hear(t)
			earlier = before.attestation

			o := greetedClient(t, alice, w.at)
			forbidden := request(2)
			forbidden.Server = netip.AddrPortFrom(forbidden.Server.Addr(), 1)
			o.say(t, first(o), forbidden)
			o.closedWith(t, closeUnattested)
			if up, _ := g.counts(); up != 1 {
				t.Errorf("%d sessions up, want the first only", up)
			}
		})
	}
}
