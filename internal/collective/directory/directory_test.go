package directory

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// teller sends records to one directory, as the only source.
type teller struct {
	t     testing.TB
	d     *Directory
	trust *collective.Trust
	now   time.Time
	j     *Journal
}

func newTeller(t testing.TB, a *authority, limits Limits) *teller {
	te := &teller{t, New(limits), a.trust(t), time.Now(), NewJournal(1)}
	te.all()
	return te
}

func (te *teller) all() (events []Event) {
	for ask, behind := te.d.Behind(); behind; ask, behind = te.d.Behind() {
		events = append(events, te.d.Answer(te.j.Answer(ask), te.trust, te.now)...)
	}
	return events
}

// put sends a record that no coordinator has checked, and returns what happened to it as text.
func (te *teller) put(s *SignedRecord) string {
	te.t.Helper()
	r, err := parseRecord(s.Payload)
	if err != nil {
		te.t.Fatal(err)
	}
	if err := te.j.Put(te.j.Head().Head+1, r.Name, s); err != nil {
		te.t.Fatal(err)
	}
	te.d.Doubt()
	return inWords(te.all())
}

func inWords(events []Event) string {
	var words []string
	for _, e := range events {
		words = append(words, e.Name+" "+string(e.Kind))
	}
	return strings.Join(words, ", ")
}

func (te *teller) want(what, got, want string) {
	te.t.Helper()
	if got != want {
		te.t.Errorf("%s: %q, want %q (last refusal: %v)", what, got, want, te.d.LastRefusal())
	}
}

func TestEvents(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	alice := a.issue(t, "alice", terms{})
	te.want("first", te.put(alice.signed(t, 1)), "alice joined")
	te.want("the same", te.put(alice.signed(t, 1)), "")
	te.want("renewed", te.put(alice.signed(t, 2)), "alice renewed")
	r := alice.record(3, te.now)
	r.Kinds = []string{"mapped"}
	te.want("offers less", te.put(alice.sign(t, r)), "alice changed")
	te.want("older", te.put(alice.signed(t, 2)), "")
	if te.d.Refused()[Older] != 1 {
		t.Errorf("refused %v", te.d.Refused())
	}
	if v, ok := te.d.Get("alice"); !ok || v.Record.Sequence != 3 || len(slices.Collect(te.d.All())) != 1 {
		t.Errorf("%+v", v)
	}
	if err := te.j.Remove(te.j.Head().Head+1, "alice", "moved\xff away"); err != nil {
		t.Fatal(err)
	}
	te.d.Doubt()
	events := te.all()
	te.want("removed", inWords(events), "alice left")
	if events[0].Why != "moved away" {
		t.Errorf("why: %q", events[0].Why)
	}
}

// A later certificate owns the name, whatever revision the records of the earlier one have.
func TestTwoMembersWithOneName(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	old := a.issue(t, "alice", terms{from: te.now.Add(-2 * time.Hour)})
	reissued := a.issue(t, "alice", terms{from: te.now.Add(-time.Hour)})
	te.want("old", te.put(old.signed(t, 8)), "alice joined")
	te.want("reissued", te.put(reissued.signed(t, 1)), "alice renewed")
	te.want("old again", te.put(old.signed(t, 9)), "")
	_, err := te.d.Judge(old.signed(t, 10), te.trust, te.now)
	wantReason(t, err, Older)
}

func TestTwoMembersWithOneSubnet(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	old := a.issue(t, "old", terms{subnet: "10.1.2.0/26", from: te.now.Add(-3 * time.Hour)})
	inner := a.issue(t, "inner", terms{subnet: "10.1.2.32/27", from: te.now.Add(-2 * time.Hour)})
	outer := a.issue(t, "outer", terms{subnet: "10.1.0.0/16", from: te.now.Add(-time.Hour)})
	te.want("first", te.put(inner.signed(t, 1)), "inner joined")
	te.want("an older certificate", te.put(old.signed(t, 1)), "")
	if te.d.Refused()[SubnetTaken] != 1 {
		t.Errorf("refused %v", te.d.Refused())
	}
	_, err := te.d.Judge(outer.signed(t, 1), te.trust, te.now)
	wantReason(t, err, SubnetTaken) // the coordinator takes none that is in use
	te.want("a later certificate", te.put(outer.signed(t, 1)), "inner left, outer joined")
	// When it is removed, the waiting records come back: first the one that the authority issued first.
	if err := te.j.Remove(te.j.Head().Head+1, "outer", "gone"); err != nil {
		t.Fatal(err)
	}
	te.d.Doubt()
	te.want("it goes", inWords(te.all()), "outer left, inner joined")
}

func TestTwoMembersWithOneKey(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	alice, mallory := a.issue(t, "alice", terms{}), a.issue(t, "mallory", terms{})
	key := func(m member, sequence uint64, k byte) *SignedRecord {
		r := m.record(sequence, te.now)
		r.Key = WireGuardKey{k}
		return m.sign(t, r)
	}
	te.want("alice", te.put(key(alice, 1, 1)), "alice joined")
	te.want("mallory", te.put(key(mallory, 1, 1)), "")
	_, err := te.d.Judge(key(mallory, 2, 1), te.trust, te.now)
	wantReason(t, err, KeyTaken)
	te.want("alice takes another", te.put(key(alice, 2, 2)), "alice changed, mallory joined")
}

// A record that gets its place may free what another waits for, in whatever order their names are.
func TestWaitingForWhoWaits(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	const subnet = "10.1.2.0/26"
	middle := a.issue(t, "middle", terms{subnet: subnet, from: te.now.Add(-time.Hour)})
	alice, xenia := a.issue(t, "alice", terms{}), a.issue(t, "xenia", terms{})
	zoe := a.issue(t, "zoe", terms{subnet: subnet})
	key := func(m member, sequence uint64, k byte) *SignedRecord {
		r := m.record(sequence, te.now)
		r.Key = WireGuardKey{k}
		return m.sign(t, r)
	}
	te.want("middle has key 1", te.put(key(middle, 1, 1)), "middle joined")
	te.want("xenia has key 2", te.put(key(xenia, 1, 2)), "xenia joined")
	te.want("alice waits for middle", te.put(key(alice, 1, 1)), "")
	te.want("zoe waits for xenia", te.put(key(zoe, 1, 2)), "")
	te.want("xenia takes another key", te.put(key(xenia, 2, 3)), "xenia changed, middle left, zoe joined, alice joined")
}

func TestLimits(t *testing.T) {
	a := newAuthority(t, testCollective)
	size := a.issue(t, "m0", terms{}).signed(t, 1).Size()
	for what, limits := range map[string]Limits{
		"members": {Members: 3, Bytes: 1 << 20},
		"bytes":   {Members: 100, Bytes: 3*size + size/2},
	} {
		te := newTeller(t, a, limits)
		for i := range 5 {
			te.put(a.issue(t, fmt.Sprint("m", i), terms{}).signed(t, 1))
		}
		if te.d.Len() != 3 || te.d.Refused()[Full] != 2 {
			t.Errorf("%s: %d members, refused %v", what, te.d.Len(), te.d.Refused())
		}
		m1, _ := te.d.Get("m1")
		if m1 == nil {
			t.Fatalf("%s: m1 is missing", what)
		}
	}
	// A member in the directory may renew its record when the directory is full.
	te := newTeller(t, a, Limits{Members: 1, Bytes: size + size/2})
	alice := a.issue(t, "alice", terms{})
	te.put(alice.signed(t, 1))
	te.want("renewed", te.put(alice.signed(t, 2)), "alice renewed")
}

// Nobody can fill memory with conflicts.
func TestWaitingIsBounded(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	for i := range maxWaiting + 20 {
		m := a.issue(t, fmt.Sprint("m", i), terms{})
		r := m.record(1, te.now)
		r.Key = WireGuardKey{1}
		te.put(m.sign(t, r))
	}
	if len(te.d.waiting) != maxWaiting || te.d.Refused()[KeyTaken] != maxWaiting+19 {
		t.Errorf("%d wait, refused %v", len(te.d.waiting), te.d.Refused())
	}
}

func TestTimeGoesOn(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	te.put(a.issue(t, "alice", terms{}).signed(t, 1))
	te.put(a.issue(t, "bob", terms{to: te.now.Add(time.Hour)}).signed(t, 1))
	te.want("nothing ended", inWords(te.d.Tick(te.now)), "")
	te.want("bob's certificate", inWords(te.d.Tick(te.now.Add(2*time.Hour))), "bob left")
	te.want("alice's record", inWords(te.d.Tick(te.now.Add(6*24*time.Hour))), "alice left")
}

// A host whose clock was a day ahead forgets the others; when it is set right, they come back.
func TestClockWasAhead(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	s := a.issue(t, "bob", terms{to: te.now.Add(time.Hour)}).signed(t, 1)
	te.want("before", te.put(s), "bob joined")
	te.want("ahead", inWords(te.d.Tick(te.now.Add(24*time.Hour))), "bob left")
	te.d.Tick(te.now)
	te.want("right", inWords(te.all()), "bob joined")
}

// A host whose clock is a day behind refuses what is signed now. When the clock is corrected, it asks again.
func TestClockWasBehind(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	te.now = te.now.Add(-24 * time.Hour)
	te.d.Tick(te.now)
	te.want("behind", te.put(a.issue(t, "bob", terms{}).signed(t, 1)), "")
	if te.d.Refused()[NotYet] != 1 {
		t.Fatalf("refused %v", te.d.Refused())
	}
	te.d.Tick(te.now.Add(time.Minute))
	te.want("still behind", inWords(te.all()), "")
	te.now = te.now.Add(24*time.Hour + time.Minute)
	te.d.Tick(te.now)
	te.want("right", inWords(te.all()), "bob joined")
}

// Records of a new root that came before the root itself are asked for again.
func TestTrustGrows(t *testing.T) {
	a, later := newAuthority(t, testCollective), newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	te.want("unknown root", te.put(later.issue(t, "bob", terms{}).signed(t, 1)), "")
	te.trust = later.trust(t)
	te.d.Recheck(te.trust, te.now)
	te.d.Tick(te.now)
	te.want("known root", inWords(te.all()), "bob joined")
	te.d.Recheck(te.trust, te.now)
	te.d.Tick(te.now)
	if _, behind := te.d.Behind(); behind {
		t.Error("asks again without need")
	}
}

// When a coordinator has lost its store, members keep the records of the others.
func TestNewStore(t *testing.T) {
	a := newAuthority(t, testCollective)
	te := newTeller(t, a, DefaultLimits())
	alice, bob, carol := a.issue(t, "alice", terms{}), a.issue(t, "bob", terms{}), a.issue(t, "carol", terms{})
	te.put(alice.signed(t, 1))
	te.put(bob.signed(t, 5))
	te.j = NewJournal(2)
	te.d.Doubt()
	te.want("an empty store", inWords(te.all()), "")
	te.want("an older record", te.put(bob.signed(t, 4)), "")
	te.want("a new one", te.put(carol.signed(t, 1)), "carol joined")
	te.d.Answer(te.j.Answer(Ask{}), te.trust, te.now)
	te.want("listed again", inWords(te.all()), "")
	for _, name := range []string{"alice", "bob"} {
		if err := te.j.Remove(te.j.Head().Head+1, name, "gone"); err != nil {
			t.Fatal(err)
		}
	}
	te.d.Doubt()
	te.want("removed", inWords(te.all()), "alice left, bob left")
}

func TestJournal(t *testing.T) {
	a := newAuthority(t, testCollective)
	j := NewJournal(1)
	s := a.issue(t, "alice", terms{}).signed(t, 1)
	for r := range uint64(1000) {
		if err := j.Put(r+1, "alice", s); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Put(1000, "alice", s); err == nil {
		t.Error("took an old revision")
	}
	if err := j.Put(1001, "alice", &SignedRecord{Payload: make([]byte, MaxMessage), Chain: s.Chain}); err == nil {
		t.Error("took a record that fits in no message")
	}
	if err := j.Remove(1001, "../alice", ""); err == nil {
		t.Error("took a name that nobody would read")
	}
	if len(j.items) > 100 {
		t.Errorf("%d items for one name", len(j.items))
	}
	for i := range uint64(maxRemoved + 1) {
		if err := j.Remove(2000+i, fmt.Sprint("m", i), "gone"); err != nil {
			t.Fatal(err)
		}
	}
	if j.floor == 0 || j.removed > maxRemoved || len(j.byName) != j.removed+1 {
		t.Errorf("floor %d, %d removals, %d names", j.floor, j.removed, len(j.byName))
	}
	if b := j.Answer(Ask{Epoch: 1, After: j.floor - 1}); b.Listing == 0 || b.After != 0 || len(b.Changes) != 1 {
		t.Errorf("who missed what is forgotten gets %d changes after %d, listing %d", len(b.Changes), b.After, b.Listing)
	}
	if b := j.Answer(Ask{Epoch: 1, After: j.floor}); b.Listing != 0 || b.After != j.floor || len(b.Changes) == 0 {
		t.Errorf("who missed less gets %d changes after %d, listing %d", len(b.Changes), b.After, b.Listing)
	}
	if b := j.Answer(Ask{Epoch: 1, After: 1 << 60}); b.Revision != j.head || len(b.Changes) != 0 {
		t.Errorf("who knows more gets %+v", b)
	}
}

func TestSubnets(t *testing.T) {
	var s subnets
	p := netip.MustParsePrefix
	s.add(p("10.0.0.0/24"), "a")
	s.add(p("10.0.2.0/26"), "b")
	s.add(p("10.0.2.64/26"), "c")
	s.add(p("fd00::/64"), "d")
	s.add(netip.Prefix{}, "nobody")
	for of, want := range map[string]string{
		"10.0.0.64/26": "a", "10.0.1.0/24": "", "10.0.2.0/24": "b c", "10.0.0.0/8": "a b c", "10.0.2.128/25": "",
		"fd00::/48": "d", "fd00:0:0:1::/64": "", "0.0.0.0/0": "a b c", "9.0.0.0/8": "", "10.0.2.64/26": "c",
	} {
		if got := strings.Join(s.overlapping(p(of), "me"), " "); got != want {
			t.Errorf("%s overlaps %q, want %q", of, got, want)
		}
	}
	if got := s.overlapping(p("10.0.2.0/24"), "b"); !slices.Equal(got, []string{"c"}) {
		t.Errorf("b's own counts: %v", got)
	}
	s.remove(p("10.0.2.0/26"))
	s.remove(netip.Prefix{})
	if got := s.overlapping(p("10.0.0.0/8"), ""); !slices.Equal(got, []string{"a", "c"}) || len(s) != 3 {
		t.Errorf("left: %v", s)
	}
}
