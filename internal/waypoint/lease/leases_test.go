package lease

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/waypoint/attribution"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

var (
	begin  = time.Unix(1_000_000, 0)
	server = netip.MustParseAddrPort("8.0.0.1:443")
)

func terms() Terms {
	return Terms{MappingsPerMember: 2, Lifetime: 10 * time.Minute, InBand: rules.InBandAuthenticated, Marks: rules.DefaultMarks}
}

func conditions(t testing.TB, now time.Time) Conditions {
	t.Helper()
	policy, err := egress.New(nil, []netip.Prefix{netip.MustParsePrefix("8.9.0.0/16")}, []uint16{25})
	if err != nil {
		t.Fatal(err)
	}
	return Conditions{Now: now, Policy: policy.Around(egress.Surroundings{}), PortTaken: noListeners}
}

func from(name string, client netip.Addr, session uint64) Request {
	return Request{ID: 7, Session: session, Name: name, Serial: "5e", Client: client}
}

// key is a key that goes with a number.
func key(n uint64) (k inband.Key) {
	sum := sha256.Sum256(fmt.Append(nil, n))
	copy(k[:], sum[:])
	return k
}

// Each reason for which a mapping is refused, and when to come back.
func TestMappingsAreRefused(t *testing.T) {
	alice := from("alice", clientNumber(1), 0)
	closed := giving.Standing{Cause: giving.OutsideHours, Until: begin.Add(time.Hour)}
	for name, c := range map[string]struct {
		change func(*MappingRequest, *Conditions)
		code   wire.Code
		retry  time.Duration
	}{
		"no server":        {func(r *MappingRequest, _ *Conditions) { r.Server = netip.AddrPort{} }, wire.Malformed, 0},
		"denied server":    {func(r *MappingRequest, _ *Conditions) { r.Server = netip.MustParseAddrPort("8.9.0.1:443") }, wire.DestinationForbidden, 0},
		"denied port":      {func(r *MappingRequest, _ *Conditions) { r.Server = netip.MustParseAddrPort("8.0.0.1:25") }, wire.DestinationForbidden, 0},
		"another family":   {func(r *MappingRequest, _ *Conditions) { r.Client = netip.MustParseAddr("2001:4860::1") }, wire.FamilyMismatch, 0},
		"outside of hours": {func(_ *MappingRequest, u *Conditions) { u.Giving = closed }, wire.OutsideHours, time.Hour},
		"outside of its own hours": {func(_ *MappingRequest, u *Conditions) {
			u.Of = func(string) MemberConditions { return MemberConditions{Giving: closed} }
		}, wire.NotOffered, retryOwn},
		"switched off":    {func(_ *MappingRequest, u *Conditions) { u.Giving.Cause = giving.SwitchedOff }, wire.SwitchedOff, 0},
		"loaded":          {func(_ *MappingRequest, u *Conditions) { u.LoadedUntil = begin.Add(9 * time.Second) }, wire.Loaded, wire.Spread(9*time.Second, begin.Add(9*time.Second), "alice")},
		"no port is free": {func(_ *MappingRequest, u *Conditions) { u.PortTaken = func(uint16) bool { return true } }, wire.Busy, retryQuota},
		"one more": {func(r *MappingRequest, u *Conditions) {
			r.Server = netip.MustParseAddrPort("8.0.0.4:443")
		}, wire.QuotaMappings, retryQuota},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(terms())
			under := conditions(t, begin)
			r := MappingRequest{Request: alice, Server: server}
			c.change(&r, &under)
			requests := []MappingRequest{r}
			if c.code == wire.QuotaMappings {
				requests = []MappingRequest{{Request: alice, Server: server}, {Request: alice, Server: netip.MustParseAddrPort("8.0.0.3:443")}, r}
			}
			b := l.Decide(requests, under)
			answers := b.Answers(false)
			got := answers[len(answers)-1].Refusal
			if got == nil || got.ID != 7 || got.Code != c.code || got.RetryAfter != c.retry {
				t.Fatalf("refused by %+v", got)
			}
			if e := answers[len(answers)-1].Entry; e == nil || e.Event != attribution.Refused || e.Member != "alice" || e.Refusal != c.code.String() {
				t.Errorf("the log says %+v", e)
			}
			if m := l.Known("alice"); m.Refused[c.code] != 1 || l.Held()[m.ID].Mappings != len(requests)-1 {
				t.Errorf("alice: %+v", m)
			}
		})
	}
}

// A loaded waypoint renews mappings, and serves members who have no other.
func TestLoadedRefusesOnlyWhoHasAnother(t *testing.T) {
	l := New(terms())
	under := conditions(t, begin)
	r := MappingRequest{Request: from("alice", clientNumber(1), 0), Server: server}
	ask := func(r MappingRequest) *wire.Refusal {
		return l.Decide([]MappingRequest{r}, under).Answers(false)[0].Refusal
	}
	if refusal := ask(r); refusal != nil {
		t.Fatal(refusal)
	}
	under.LoadedUntil = begin.Add(time.Minute)
	if refusal := ask(r); refusal != nil {
		t.Errorf("renewal: %v", refusal)
	}
	r.Server = netip.MustParseAddrPort("8.0.0.3:443")
	if refusal := ask(r); refusal == nil || refusal.Code != wire.Loaded {
		t.Errorf("another mapping: %v", refusal)
	}
	r.Sole = true
	if refusal := ask(r); refusal != nil {
		t.Errorf("without another waypoint: %v", refusal)
	}
	r.Server, r.Sole, under.LoadedUntil = netip.MustParseAddrPort("8.0.0.4:443"), false, begin
	if refusal := ask(r); refusal != nil && refusal.Code == wire.Loaded {
		t.Errorf("when that is over: %v", refusal)
	}
}

// Members that a loaded waypoint refuses at one moment do not all come back at another.
func TestLoadedRefusalsAreSpread(t *testing.T) {
	under := conditions(t, begin)
	under.LoadedUntil = begin.Add(12 * time.Second)
	var requests []MappingRequest
	for i := range 40 {
		requests = append(requests, MappingRequest{Request: from(fmt.Sprint("member", i), clientNumber(i+1), 0), Server: server})
	}
	b := New(terms()).Decide(requests, under)
	came := make(map[time.Duration]int) // by the second
	for _, a := range b.Answers(false) {
		if a.Refusal == nil || a.Refusal.Code != wire.Loaded {
			t.Fatalf("the answer is %+v", a)
		}
		came[a.Refusal.RetryAfter.Truncate(time.Second)]++
	}
	for at := 9 * time.Second; at < 15*time.Second; at += time.Second {
		if n := came[at]; n == 0 || n > 20 {
			t.Errorf("after %v come %d of 40", at, n)
		}
	}
}

// Where SYNs are authenticated, a mapping never gets the server's own port.
func TestMappingsLeaveServersPorts(t *testing.T) {
	for mode, same := range map[rules.InBandMode]bool{rules.InBandOff: true, rules.InBandAuthenticated: false} {
		terms := terms()
		terms.InBand = mode
		l := New(terms)
		b := l.Decide([]MappingRequest{{Request: from("alice", clientNumber(1), 0), Server: server, Proposed: server.Port()}}, conditions(t, begin))
		if a := b.Answers(false)[0]; a.Refusal != nil || (a.Grant.Port == server.Port()) != same {
			t.Errorf("%v: %+v, %v", mode, a.Grant, a.Refusal)
		}
	}
}

// A batch that could not be written leaves no trace.
func TestBatchIsUndone(t *testing.T) {
	l := New(terms())
	alice := MappingRequest{Request: from("alice", clientNumber(1), 0), Server: server}
	first := l.Decide([]MappingRequest{alice}, conditions(t, begin))
	if change, needed := first.Change(); !needed || len(change.Add) != 1 || len(change.Members) != 1 {
		t.Errorf("change %+v", change)
	}
	first.Written()
	granted := first.Answers(false)[0].Grant

	later := begin.Add(time.Minute)
	other := alice
	other.Server = netip.MustParseAddrPort("8.0.0.2:443")
	b := l.Decide([]MappingRequest{alice, alice, other}, conditions(t, later))
	if change, _ := b.Change(); len(change.Add) != 1 || len(change.Renew) != 1 || change.Renew[0].Left != 10*time.Minute || len(change.Members) != 0 {
		t.Errorf("change %+v", change)
	}
	b.Undo()
	for i, a := range b.Answers(true) {
		if a.Refusal == nil || a.Refusal.Code != wire.Internal {
			t.Errorf("answer %d: %+v", i, a)
		}
	}
	left := l.Mappings(later)
	if len(left) != 1 || left[0].Port != granted.Port || left[0].Left != 9*time.Minute {
		t.Errorf("left %+v", left)
	}
}

// In-band admissions are refused to clients with an unknown address, over IPv6, or where there is no room.
func TestAdmissionsAreRefused(t *testing.T) {
	client := clientNumber(1)
	ask := func(l *Leases, name string, client netip.Addr, session uint64, under Conditions) *wire.Refusal {
		_, refusal := l.AdmitInBand(InBandRequest{Request: from(name, client, session), Key: key(session)}, under)
		return refusal
	}
	for name, c := range map[string]struct {
		mode rules.InBandMode
		ask  func(l *Leases, under Conditions) *wire.Refusal
		code wire.Code
	}{
		"no session": {rules.InBandAuthenticated, func(l *Leases, u Conditions) *wire.Refusal { return ask(l, "bob", client, 1, u) }, wire.Busy},
		"IPv6": {rules.InBandAuthenticated, func(l *Leases, u Conditions) *wire.Refusal {
			return ask(l, "alice", netip.MustParseAddr("2001:4860::1"), 1, u)
		}, wire.FamilyMismatch},
		"not offered": {rules.InBandAuthenticated, func(l *Leases, u Conditions) *wire.Refusal {
			u.NoInBand = "it is switched off"
			return ask(l, "alice", client, 1, u)
		}, wire.NotOffered},
		"another member, in the open": {rules.InBandOpen, func(l *Leases, u Conditions) *wire.Refusal {
			l.SessionUp(from("bob", client, 2), nil)
			if refusal := ask(l, "alice", client, 1, u); refusal != nil {
				return refusal
			}
			return ask(l, "bob", client, 2, u)
		}, wire.Busy},
		"too many at an address": {rules.InBandAuthenticated, func(l *Leases, u Conditions) *wire.Refusal {
			for i := range uint64(inband.MaxSlots) {
				l.SessionUp(from("bob", client, 10+i), nil)
				if refusal := ask(l, "bob", client, 10+i, u); refusal != nil {
					return refusal
				}
			}
			return ask(l, "alice", client, 1, u)
		}, wire.Busy},
	} {
		t.Run(name, func(t *testing.T) {
			terms := terms()
			terms.InBand = c.mode
			l := New(terms)
			l.SessionUp(from("alice", client, 1), nil)
			if got := c.ask(l, conditions(t, begin)); got == nil || got.Code != c.code {
				t.Errorf("refused by %v", got)
			}
		})
	}
}

// The statement that a member signed for its session stays with the session, also at another address.
func TestProofsMoveWithSessions(t *testing.T) {
	old, now := clientNumber(1), clientNumber(2)
	proof := &attribution.Session{Opened: begin}
	l := New(terms())
	l.SessionUp(from("alice", old, 1), proof)
	l.SessionUp(from("alice", old, 2), nil)
	if _, before, ok := l.SessionMoved(1, now, begin); !ok || before != (Caller{l.Known("alice"), old}) || !l.Calls(before) {
		t.Errorf("moved: %+v, %v", before, ok)
	}
	u := conditions(t, begin)
	mapped := l.Decide([]MappingRequest{{Request: from("alice", now, 1), Server: server, Proposed: 444}}, u).Answers(false)[0]
	if _, refusal := l.AdmitInBand(InBandRequest{Request: from("alice", now, 1), Key: key(1)}, u); refusal != nil {
		t.Fatal(refusal)
	}
	inside := netip.MustParseAddr("10.77.0.2")
	if _, refusal := l.AdmitTunnel(TunnelRequest{Request: from("alice", now, 1), Kind: wire.WireGuard, Addresses: []netip.Addr{inside}}, u); refusal != nil {
		t.Fatal(refusal)
	}
	if l.AskedBy(1, wire.Mapped, now, mapped.Grant.Port) != proof || l.AskedBy(1, wire.InBand, now, 0) != proof || l.AskedBy(1, wire.WireGuard, inside, 0) != proof {
		t.Error("what was asked for from the new address is not attributed to the session")
	}
	if _, _, ok := l.SessionMoved(9, now, begin); ok {
		t.Error("a session that is not known has moved")
	}
}

// Addresses in tunnels: they change hands, survive the end of their session, and are given back when the kernel did
// not take them.
func TestTunnelAddresses(t *testing.T) {
	inside := []netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd77::2")}
	l := New(terms())
	ask := func(name string, session uint64, now time.Time, standing giving.Standing) (*Admitting, *wire.Refusal) {
		l.SessionUp(from(name, clientNumber(int(session)), session), nil)
		u := conditions(t, now)
		u.Giving = standing
		return l.AdmitTunnel(TunnelRequest{Request: from(name, clientNumber(int(session)), session), Kind: wire.WireGuard, Addresses: inside, Lease: time.Hour}, u)
	}
	a, refusal := ask("alice", 1, begin, giving.Standing{})
	if refusal != nil || a.Before.Changes() || len(a.Change.Admit) != 2 || len(a.Change.Members) != 1 {
		t.Fatalf("alice: %+v, %v", a, refusal)
	}
	a.Written()
	if got := a.Granted(); len(got) != 2 || got[0].Event != attribution.AdmissionGranted {
		t.Errorf("the log says %+v", got)
	}
	closed := giving.Standing{Cause: giving.SwitchedOff}
	if a, refusal = ask("alice", 1, begin.Add(time.Minute), closed); refusal != nil || len(a.Granted()) != 0 {
		t.Errorf("a renewal while closed: %+v, %v", a, refusal)
	}
	if _, refusal = ask("bob", 2, begin, closed); refusal == nil || refusal.Code != wire.SwitchedOff {
		t.Errorf("bob while closed: %v", refusal)
	}
	alice := l.Known("alice")
	l.SessionDown(1, begin)
	if held := l.Held()[alice.ID]; held.Tunnels != 0 || len(l.State(begin).Admissions) != 2 {
		t.Errorf("without its session: %+v", held)
	}
	if a, refusal = ask("bob", 2, begin, giving.Standing{}); refusal != nil || len(a.Before.Change.Revoke) != 2 || !slices.Equal(a.Before.Tunnels, inside) {
		t.Fatalf("bob: %+v, %v", a, refusal)
	}
	a.Undo()
	if s := l.State(begin); len(s.Admissions) != 0 {
		t.Errorf("left: %+v", s.Admissions)
	}
	if e := l.Expire(begin.Add(2 * time.Hour)); e.Changes() {
		t.Errorf("expired: %+v", e)
	}
}

// Leases of an earlier agent are kept long enough for its members to come back.
func TestAdopts(t *testing.T) {
	table := rules.State{
		Members:    []rules.Member{{ID: 1, Name: "alice", Serial: "5e"}, {ID: 2, Name: "bob", Serial: "5e"}},
		Mappings:   []rules.Mapping{{Client: clientNumber(1), Port: 443, Server: server, Member: 1, Left: time.Hour}},
		Admissions: []rules.Admission{{Addr: clientNumber(1), Kind: wire.InBand, Member: 1, Left: time.Hour}, {Addr: clientNumber(3), Kind: wire.WireGuard, Member: 2, Left: time.Hour}},
	}
	slots := map[netip.Addr][]inband.Slot{clientNumber(1): {
		{Key: key(1), Mark: rules.DefaultMarks.Mark(1, wire.InBand), Expires: begin.Add(time.Hour)},
		{Key: key(2), Mark: rules.DefaultMarks.Mark(1, wire.InBand), Expires: begin.Add(time.Second)},
		{Key: key(3), Mark: rules.DefaultMarks.Mark(2, wire.InBand), Expires: begin.Add(time.Hour)},
	}}
	l := New(terms())
	if !l.Empty() {
		t.Error("a new one is not empty")
	}
	l.Adopt(table, slots, begin)
	if got := l.Keys(clientNumber(1)); len(got) != 1 || got[0].Key != key(2) || !got[0].Expires.Equal(begin.Add(time.Second)) {
		t.Errorf("keys %+v", got)
	}
	by := &attribution.Session{}
	l.Restore(map[attribution.Grant]*attribution.Session{{Member: "alice", Client: clientNumber(1), Port: 443}: by})
	if l.AskedBy(1, wire.Mapped, clientNumber(1), 443) != by || l.AskedBy(2, wire.Mapped, clientNumber(1), 443) != nil {
		t.Error("the mapping's session is not known, or that of another member's")
	}
	if e := l.Expire(begin.Add(AdoptedGrace + ExpiryGrace)); len(e.Change.Revoke) != 1 || e.Change.Revoke[0].Addr != clientNumber(1) {
		t.Errorf("after the grace ended: %+v", e)
	}
	if e, n := l.Expel(l.Known("alice"), begin); n != 1 || len(e.Entries) != 1 || e.Entries[0].Event != attribution.MappingRemoved {
		t.Errorf("expelled: %+v, %d mappings", e, n)
	}
	if m := l.Known("alice"); !m.Expelled {
		t.Error("the expelled member counts as present")
	}
	l.SessionUp(Request{Name: "alice", Serial: "of another host", Session: 77, Client: clientNumber(9)}, nil)
	if m := l.Known("alice"); m.Expelled {
		t.Error("another host with its name counts as expelled")
	}
	if e := l.EndTunnels([]netip.Addr{clientNumber(3), clientNumber(4)}, begin); len(e.Tunnels) != 1 || !l.Empty() {
		t.Errorf("revoked: %+v", e)
	}
}

// Whatever sessions do and however much time passes: the table computed from the leases equals the one that their
// changes make, admissions have a session and are not expired, and no address has more keys than eBPF allows.
func TestChangesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New(terms())
		now := begin
		admitted := make(map[string]bool)
		name := func(a rules.Admission) string { return fmt.Sprint(a.Addr, a.Kind, a.Member) }
		apply := func(c rules.Change) {
			for _, a := range c.Revoke {
				delete(admitted, name(a))
			}
			for _, a := range c.Admit {
				admitted[name(a)] = true
			}
		}
		var last uint64
		drawn := func(t *rapid.T, session uint64) Request {
			return from(rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "member"), clientNumber(rapid.IntRange(0, 2).Draw(t, "client")), session)
		}
		some := func(t *rapid.T) uint64 { return rapid.Uint64Range(1, max(last, 1)).Draw(t, "session") }
		t.Repeat(map[string]func(*rapid.T){
			"up": func(t *rapid.T) {
				last++
				l.SessionUp(drawn(t, last), nil)
			},
			"down": func(t *rapid.T) { apply(l.SessionDown(some(t), now).Change) },
			"moves": func(t *rapid.T) {
				e, _, _ := l.SessionMoved(some(t), clientNumber(rapid.IntRange(0, 2).Draw(t, "to")), now)
				apply(e.Change)
			},
			"asks": func(t *rapid.T) {
				session := some(t)
				x, ok := l.sessions.live[session]
				if !ok {
					t.Skip("no such session")
				}
				a, refusal := l.AdmitInBand(InBandRequest{Request: from(x.Member.Name, x.Addr, session), Key: key(session)}, Conditions{Now: now})
				if refusal != nil {
					t.Fatal(refusal)
				}
				apply(a.Change)
				if rapid.Bool().Draw(t, "fails") {
					e := a.Undo()
					apply(e.Change)
				}
			},
			"a tunnel": func(t *rapid.T) {
				addr := netip.AddrFrom4([4]byte{10, 77, 0, byte(rapid.IntRange(0, 2).Draw(t, "address"))})
				a, refusal := l.AdmitTunnel(TunnelRequest{Request: drawn(t, some(t)), Kind: wire.WireGuard, Addresses: []netip.Addr{addr}, Lease: time.Minute}, Conditions{Now: now})
				if refusal != nil {
					t.Fatal(refusal)
				}
				apply(a.Before.Change)
				apply(a.Change)
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
				e := l.Expire(now)
				apply(e.Change)
			},
			"expelled": func(t *rapid.T) {
				if m := l.Known("alice"); m != nil {
					e, _ := l.Expel(m, now)
					apply(e.Change)
				}
			},
			"": func(t *rapid.T) {
				state := l.State(now)
				if len(state.Admissions) != len(admitted) {
					t.Fatalf("admitted %v, the table %+v", admitted, state.Admissions)
				}
				for _, a := range state.Admissions {
					if !admitted[name(a)] {
						t.Fatalf("%s is not admitted: %v", name(a), admitted)
					}
					if a.Kind == wire.InBand && !l.Calls(Caller{l.Member(a.Member), a.Addr}) {
						t.Fatalf("%s has no session", name(a))
					}
				}
				for i := range 3 {
					if n := len(l.Keys(clientNumber(i))); n > inband.MaxSlots {
						t.Fatalf("%d keys", n)
					}
				}
			},
		})
	})
}
