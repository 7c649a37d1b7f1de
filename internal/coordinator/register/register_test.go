package register

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

var begin = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func keyNumber(n int) (k collective.PublicKey) {
	copy(k[:], fmt.Sprintf("key %d", n))
	return k
}

// book is a register with a minimal store.
type book struct{ *Register }

func newBook() book { return book{New(rand.IntN)} }

func (b book) invite(t testing.TB, name string, now time.Time, life time.Duration) enrol.Secret {
	t.Helper()
	secret := enrol.NewSecret()
	e, err := b.Register.Invite(secret, name, now, now.Add(life))
	if err != nil {
		t.Fatal(err)
	}
	b.Apply(e)
	return secret
}

func (b book) join(s enrol.Secret, name string, key int, now time.Time) (*Member, error) {
	m, e, err := b.Admit(Applicant{Secret: s, Name: name, Key: keyNumber(key)}, now)
	if err == nil {
		b.Apply(e)
	}
	return m, err
}

func wantRefusal(t testing.TB, err error, want enrol.Reason) *enrol.Refusal {
	t.Helper()
	r, ok := errors.AsType[*enrol.Refusal](err)
	if !ok || r.Reason != want {
		t.Fatalf("got %v, want a refusal because of %s", err, want)
	}
	return r
}

func TestTokenCountsOnce(t *testing.T) {
	b := newBook()
	s := b.invite(t, "", begin, time.Hour)
	m, err := b.join(s, "laptop", 1, begin)
	if err != nil || m.Name != "laptop" || !m.Subnet.IsValid() {
		t.Fatalf("got %+v, %v", m, err)
	}
	again, err := b.join(s, "laptop", 1, begin.Add(2*time.Hour)) // the answer was lost; it may be late by now
	if err != nil || again.Subnet != m.Subnet {
		t.Errorf("the same host again: %+v, %v", again, err)
	}
	_, err = b.join(s, "laptop", 2, begin)
	wantRefusal(t, err, enrol.TokenUsed)
	_, err = b.join(s, "other", 1, begin)
	wantRefusal(t, err, enrol.TokenUsed)
	_, err = b.join(enrol.NewSecret(), "other", 2, begin)
	wantRefusal(t, err, enrol.TokenUnknown)
	late := b.invite(t, "", begin, time.Hour)
	_, err = b.join(late, "other", 2, begin.Add(time.Hour+time.Second))
	wantRefusal(t, err, enrol.TokenExpired)
}

func TestNames(t *testing.T) {
	b := newBook()
	if _, err := b.join(b.invite(t, "", begin, time.Hour), "laptop", 1, begin); err != nil {
		t.Fatal(err)
	}
	s := b.invite(t, "", begin, time.Hour)
	_, err := b.join(s, "laptop", 2, begin)
	r := wantRefusal(t, err, enrol.NameTaken)
	if r.Proposal != "laptop-2" || !strings.Contains(r.Error(), "join as laptop-2") {
		t.Errorf("proposes %q: %v", r.Proposal, r)
	}
	if _, err := b.join(s, r.Proposal, 2, begin); err != nil { // the token is still good
		t.Error(err)
	}
	_, err = b.join(b.invite(t, "", begin, time.Hour), "other", 2, begin)
	wantRefusal(t, err, enrol.KeyTaken)
	_, err = b.join(b.invite(t, "tower", begin, time.Hour), "other", 3, begin)
	if r := wantRefusal(t, err, enrol.NameDiffers); r.Proposal != "tower" {
		t.Errorf("proposes %q", r.Proposal)
	}
	if _, err := b.Register.Invite(enrol.NewSecret(), "laptop", begin, begin.Add(time.Hour)); err == nil || !strings.Contains(err.Error(), "laptop-3") {
		t.Errorf("invites one who is there: %v", err)
	}
	long := strings.Repeat("a", 63)
	b.Apply(&Entry{Member: &Member{Name: long, Key: keyNumber(9), Until: begin}})
	if got := b.propose(long); collective.CheckName(got) != nil || got == long {
		t.Errorf("proposes %q", got)
	}
}

func TestRenewals(t *testing.T) {
	b := newBook()
	m, _ := b.join(b.invite(t, "", begin, time.Hour), "laptop", 1, begin)
	for _, c := range []struct {
		name string
		key  int
		at   time.Time
		want enrol.Reason
	}{
		{"laptop", 1, begin.Add(24 * time.Hour), ""},
		{"laptop", 1, m.Until.Add(Grace), ""}, // a laptop that was off
		{"laptop", 1, m.Until.Add(Grace + time.Second), enrol.NotMember},
		{"laptop", 2, begin, enrol.NotMember},
		{"other", 1, begin, enrol.NotMember},
	} {
		got, e, err := b.Renew(c.name, keyNumber(c.key), nil, c.at)
		if c.want != "" {
			wantRefusal(t, err, c.want)
			continue
		}
		if err != nil || got.Subnet != m.Subnet || e.Member.Until.Before(c.at.Add(collective.MemberValidity)) {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
}

func TestExpelledStayOut(t *testing.T) {
	b := newBook()
	m, _ := b.join(b.invite(t, "", begin, time.Hour), "laptop", 1, begin)
	e, err := b.Expel("laptop", "sold", begin)
	if err != nil {
		t.Fatal(err)
	}
	b.Apply(e)
	if e, err := b.Expel("laptop", "again", begin); err != nil || !e.empty() {
		t.Errorf("again: %+v, %v", e, err)
	}
	if _, err := b.Expel("nobody", "x", begin); err == nil {
		t.Error("expels nobody")
	}
	for _, at := range []time.Time{begin, m.Until.Add(2 * Grace)} {
		for _, e := range b.Sweep(at) {
			b.Apply(&e)
		}
		_, _, err = b.Renew("laptop", keyNumber(1), nil, at)
		if r := wantRefusal(t, err, enrol.Expelled); !strings.Contains(r.Why, "sold") {
			t.Errorf("does not say why: %v", r)
		}
		_, err = b.join(b.invite(t, "", at, time.Hour), "laptop", 2, at)
		wantRefusal(t, err, enrol.NameTaken)
		_, err = b.join(b.invite(t, "", at, time.Hour), "other", 1, at)
		wantRefusal(t, err, enrol.Expelled)
		b.Apply(b.Complete("laptop", time.Time{}))
	}
	if b.Member("laptop").Subnet.IsValid() {
		t.Error("its subnet is never free")
	}
}

// gone ends the membership of a key's host as it asks, and tells all members.
func (b book) gone(t testing.TB, key int, now time.Time) {
	t.Helper()
	name, e, err := b.Leave(keyNumber(key), now)
	if err != nil {
		t.Fatal(err)
	}
	b.Apply(e)
	b.Apply(b.Complete(name, time.Time{}))
}

// The name of a host that has left goes to the same host again with any invitation, and to another host only with one for
// that name, once all members were told.
func TestNameOfOneWhoLeft(t *testing.T) {
	b := newBook()
	anyone := func() enrol.Secret { return b.invite(t, "", begin, time.Hour) }
	if _, err := b.join(anyone(), "laptop", 1, begin); err != nil {
		t.Fatal(err)
	}
	_, _, err := b.Leave(keyNumber(2), begin)
	wantRefusal(t, err, enrol.NotMember)
	_, e, err := b.Leave(keyNumber(1), begin)
	if err != nil {
		t.Fatal(err)
	}
	b.Apply(e)
	if _, e, err := b.Leave(keyNumber(1), begin); err != nil || !e.empty() {
		t.Errorf("again: %+v, %v", e, err)
	}
	_, _, err = b.Renew("laptop", keyNumber(1), nil, begin)
	wantRefusal(t, err, enrol.NotMember)
	if _, err := b.Register.Invite(enrol.NewSecret(), "laptop", begin, begin.Add(time.Hour)); err == nil {
		t.Error("the name is free before members were told")
	}
	_, err = b.join(anyone(), "laptop", 1, begin)
	wantRefusal(t, err, enrol.NameTaken)
	b.Apply(b.Complete("laptop", time.Time{}))

	_, err = b.join(anyone(), "laptop", 2, begin)
	if r := wantRefusal(t, err, enrol.NameTaken); !strings.Contains(r.Why, "left on") || !strings.Contains(r.Why, "an invitation for this name") {
		t.Error(r)
	}
	_, err = b.join(anyone(), "other", 1, begin)
	wantRefusal(t, err, enrol.KeyTaken)
	if m, err := b.join(anyone(), "laptop", 1, begin); err != nil || m.Expelled != nil {
		t.Errorf("the same host: %+v, %v", m, err)
	}
	b.gone(t, 1, begin)
	if m, err := b.join(b.invite(t, "laptop", begin, time.Hour), "laptop", 2, begin); err != nil || len(m.Former) > 0 {
		t.Errorf("another host: %+v, %v", m, err)
	}
	if m, err := b.join(anyone(), "other", 1, begin); err != nil || !m.IsMember() { // the first one may come back under another name
		t.Errorf("%+v, %v", m, err)
	}
}

// A host that has left can be expelled, so that it cannot come back.
func TestExpelOneWhoLeft(t *testing.T) {
	b := newBook()
	if _, err := b.join(b.invite(t, "", begin, time.Hour), "laptop", 1, begin); err != nil {
		t.Fatal(err)
	}
	b.gone(t, 1, begin)
	e, err := b.Expel("laptop", "sold", begin)
	if err != nil {
		t.Fatal(err)
	}
	b.Apply(e)
	_, err = b.join(b.invite(t, "", begin, time.Hour), "laptop", 1, begin)
	if r := wantRefusal(t, err, enrol.Expelled); !strings.Contains(r.Why, "sold") {
		t.Error(r)
	}
}

// The name of an expelled host is free for an invitation when its certificates have expired. Its key stays refused, also
// after others with its name have come and gone.
func TestNameOfTheExpelled(t *testing.T) {
	b := newBook()
	m, err := b.join(b.invite(t, "", begin, time.Hour), "laptop", 1, begin)
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.Expel("laptop", "sold", begin)
	if err != nil {
		t.Fatal(err)
	}
	b.Apply(e)
	b.Apply(b.Complete("laptop", time.Time{}))
	if _, err := b.Register.Invite(enrol.NewSecret(), "laptop", begin, begin.Add(time.Hour)); err == nil || !strings.Contains(err.Error(), "from "+FormatTime(m.Until)) {
		t.Errorf("its certificates are valid at waypoints that have not heard: %v", err)
	}
	now := m.Until
	stays := func() {
		t.Helper()
		for _, name := range []string{"laptop", "other"} {
			_, err := b.join(b.invite(t, "", now, time.Hour), name, 1, now)
			if r := wantRefusal(t, err, enrol.Expelled); !strings.Contains(r.Why, "sold") {
				t.Errorf("does not say why: %v", r)
			}
			_, _, err = b.Renew(name, keyNumber(1), nil, now)
			wantRefusal(t, err, enrol.Expelled)
		}
		_, _, err = b.Leave(keyNumber(1), now)
		wantRefusal(t, err, enrol.Expelled)
		if _, err := b.Readmit(collective.Member{Name: "other", Key: keyNumber(1)}); err == nil {
			t.Error("comes back with an old certificate")
		}
	}
	next, err := b.join(b.invite(t, "laptop", now, time.Hour), "laptop", 2, now)
	if err != nil || !next.IsMember() {
		t.Fatalf("%+v, %v", next, err)
	}
	stays()
	if next, e, err := b.Renew("laptop", keyNumber(2), nil, now); err != nil {
		t.Error(err)
	} else if b.Apply(e); len(next.Former) != 1 {
		t.Errorf("%+v", next)
	}
	stays()
	b.gone(t, 2, now)
	if _, err = b.join(b.invite(t, "laptop", now, time.Hour), "laptop", 3, now); err != nil {
		t.Error(err)
	}
	stays()
	now = now.Add(collective.MemberValidity + 2*Grace)
	for _, e := range b.Sweep(now) {
		b.Apply(&e)
	}
	if m := b.Member("laptop"); m == nil || m.Key != keyNumber(1) || m.IsMember() {
		t.Errorf("after the last holder was forgotten: %+v", m)
	}
	stays()
}

// A former holder's certificate, revoked when it left or was expelled, neither gives the name back nor ends the membership of
// the present holder, whose own certificate is not signed yet, as after a crash.
func TestFormerCertificates(t *testing.T) {
	for _, why := range []collective.Reason{collective.CessationOfOperation, collective.PrivilegeWithdrawn} {
		b := newBook()
		if _, err := b.join(b.invite(t, "", begin, time.Hour), "laptop", 1, begin); err != nil {
			t.Fatal(err)
		}
		b.gone(t, 1, begin)
		if _, err := b.join(b.invite(t, "laptop", begin, time.Hour), "laptop", 2, begin); err != nil {
			t.Fatal(err)
		}
		issued := []collective.IssuedCertificate{{
			Name: "laptop", Key: keyNumber(1), NotBefore: begin, NotAfter: begin.Add(2 * collective.MemberValidity), Revoked: true, Why: why,
		}}
		entries, lost := b.Recover(issued, begin)
		if entries = append(entries, b.Withdraw(issued, begin)...); lost || len(entries) > 0 {
			t.Errorf("%v: lost %v, %+v", why, lost, entries)
		}
		// Without a register, the list tells who has left, and who was expelled.
		empty := newBook()
		entries, _ = empty.Recover(issued, begin)
		if len(entries) != 1 || entries[0].Member.IsMember() || entries[0].Member.Expelled.Left != (why == collective.CessationOfOperation) {
			t.Errorf("%v: recovers %+v", why, entries)
		}
	}
}

// Whatever happens, no token makes two members, no two members have one name, key or subnet, and a register
// that is read back is the same.
func TestRegisterHoldsTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, now := newBook(), begin
		var secrets []enrol.Secret
		usedBy := map[enrol.Secret]int{}
		banned := map[collective.PublicKey]bool{}
		var lines []byte
		do := func(e *Entry) {
			if !e.empty() {
				line, err := encodeEntry(e)
				if err != nil {
					t.Fatal(err)
				}
				lines = append(lines, line...)
			}
			b.Apply(e)
		}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		key := rapid.IntRange(1, 5)
		t.Repeat(map[string]func(*rapid.T){
			"invite": func(t *rapid.T) {
				s := enrol.Secret(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "secret"))
				if e, err := b.Register.Invite(s, rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "for"), now, now.Add(time.Hour)); err == nil && b.invitations[hashSecret(s)] == nil {
					do(e)
					secrets = append(secrets, s)
				}
			},
			"join": func(t *rapid.T) {
				if len(secrets) == 0 {
					t.Skip()
				}
				s, k := rapid.SampledFrom(secrets).Draw(t, "secret"), key.Draw(t, "key")
				m, e, err := b.Admit(Applicant{Secret: s, Name: name.Draw(t, "name"), Key: keyNumber(k)}, now)
				if err != nil {
					return
				}
				do(e)
				if by, used := usedBy[s]; used && by != k {
					t.Fatalf("a token of %d is used by %d", by, k)
				}
				usedBy[s] = k
				if m.Expelled != nil {
					t.Fatalf("admits %s, who was expelled", m.Name)
				}
			},
			"renew": func(t *rapid.T) {
				if m, e, err := b.Renew(name.Draw(t, "name"), keyNumber(key.Draw(t, "key")), nil, now); err == nil {
					do(e)
					if m.Expelled != nil {
						t.Fatalf("renews %s, who was expelled", m.Name)
					}
				}
			},
			"expel": func(t *rapid.T) {
				if e, err := b.Expel(name.Draw(t, "name"), "why", now); err == nil {
					do(e)
				}
			},
			"leave": func(t *rapid.T) {
				if _, e, err := b.Leave(keyNumber(key.Draw(t, "key")), now); err == nil {
					do(e)
				}
			},
			"told": func(t *rapid.T) { do(b.Complete(name.Draw(t, "name"), time.Time{})) },
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "days")) * 24 * time.Hour)
				for _, e := range b.Sweep(now) {
					do(&e)
				}
			},
			"": func(t *rapid.T) {
				var taken []netip.Prefix
				keys := map[collective.PublicKey]bool{}
				for n, m := range b.members.named {
					if n != m.Name || keys[m.Key] || b.members.names[m.Key] != n {
						t.Fatalf("%s is %+v, its key that of %s", n, m, b.members.names[m.Key])
					}
					keys[m.Key] = true
					for _, f := range m.Former {
						if keys[f.Key] || b.members.names[f.Key] != n || f.Expulsion.Left {
							t.Fatalf("%s had %+v before", n, f)
						}
						keys[f.Key], banned[f.Key] = true, true
					}
					if m.Expelled != nil && !m.Expelled.Left {
						banned[m.Key] = true
					} else if banned[m.Key] {
						t.Fatalf("%s was expelled, and its key is back", n)
					}
					for _, p := range taken {
						if m.Subnet.IsValid() && p.Overlaps(m.Subnet) {
							t.Fatalf("%v was given twice", m.Subnet)
						}
					}
					taken = append(taken, m.Subnet)
				}
				for k := range banned {
					if m := b.members.holder(k); m == nil || m.IsMember() {
						t.Fatalf("the expelled key %v is forgotten", k)
					}
				}
				back := newBook()
				for line := range bytes.Lines(lines) {
					e, err := decodeEntry(bytes.TrimSuffix(line, []byte("\n")))
					if err != nil {
						t.Fatal(err)
					}
					back.Apply(e)
				}
				if was, is := texts(t, b.all()), texts(t, back.all()); was != is {
					t.Fatalf("was\n%sis\n%s", was, is)
				}
			},
		})
	})
}

func texts(t rapid.TB, all []Entry) string {
	var out strings.Builder
	for i := range all {
		line, err := encodeEntry(&all[i])
		if err != nil {
			t.Fatal(err)
		}
		out.Write(line)
	}
	return out.String()
}

func TestRegisterRecovers(t *testing.T) {
	b := newBook()
	open := b.invite(t, "", begin, time.Hour)
	subnet := netip.MustParsePrefix("10.9.8.0/26")
	week := collective.IssuedCertificate{
		Name: "laptop", Key: keyNumber(1), Subnet: subnet, NotBefore: begin.Add(-5 * time.Minute), NotAfter: begin.Add(collective.MemberValidity),
	}
	hand := week
	hand.Name, hand.Key, hand.Subnet, hand.NotAfter = "server", keyNumber(2), netip.Prefix{}, begin.Add(1000*time.Hour)
	signer := week
	signer.Name = "signer:0123"
	entries, lost := b.Recover([]collective.IssuedCertificate{hand, signer}, begin)
	if lost || len(entries) != 1 {
		t.Errorf("by hand: %d entries, lost %v", len(entries), lost)
	}
	shorter := week // issued in the same second
	shorter.Key, shorter.NotAfter = keyNumber(3), week.NotAfter.Add(-time.Hour)
	entries, lost = b.Recover([]collective.IssuedCertificate{shorter, week, signer}, begin)
	if !lost || len(entries) != 1 || entries[0].Member.Key != week.Key {
		t.Fatalf("%d entries, lost %v", len(entries), lost)
	}
	b.Apply(&entries[0])
	if !b.pool.taken.overlap(subnet) {
		t.Error("its subnet can be given again")
	}
	if again, lost := b.Recover([]collective.IssuedCertificate{week}, begin); lost || len(again) > 0 {
		t.Errorf("again: %+v", again)
	}
	for _, e := range b.VoidInvitations() {
		b.Apply(&e)
	}
	_, err := b.join(open, "other", 3, begin)
	wantRefusal(t, err, enrol.TokenUnknown)
}
