package coordinator

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/register"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/enrol"
)

func TestThreeHosts(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	a, b := w.member("alpha"), w.member("beta")
	if s := w.hub.Self(); !s.Subnet.IsValid() || s.Issuer.Serial == "" {
		t.Errorf("the first member has no subnet, or was signed by the root: %+v", s)
	}
	if a.id.Self().Subnet.Overlaps(b.id.Self().Subnet) || a.id.Self().Subnet.Overlaps(w.hub.Self().Subnet) {
		t.Errorf("subnets %v, %v, %v", w.hub.Self().Subnet, a.id.Self().Subnet, b.id.Self().Subnet)
	}
	if a.welcome.Hash != enrol.HashTrust(a.id.Trust()) {
		t.Error("the hash of roots and lists is not what the member has")
	}
	if err := a.publish(a.record()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "beta is told of alpha's record", 5*time.Second, func() bool { return b.last(enrol.TopicDirectory) != nil })
	if v, there := b.directory().Get("alpha"); !there || v.Record.Port != 45672 {
		t.Error("beta's directory lacks alpha")
	}
	all := w.c.Members()
	if len(all) != 3 || all[0].Name != "alpha" || all[0].Record == nil || all[1].Record != nil || all[2].Name != "hub" {
		t.Errorf("members: %+v", all)
	}
	if s := w.c.Status(); s.Members != 3 || s.Directory.Members != 1 || s.Connected == nil || !s.Connected.Connected || s.Listening == "" || len(s.Problems) > 0 {
		t.Errorf("status: %+v", s)
	}
}

func TestInitRefusesToReplace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := Init(w.dir, Founding{Collective: "other", Request: w.host("hub").request})
	if !errors.Is(err, collective.ErrExists) {
		t.Errorf("got %v", err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "something"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(full, Founding{Collective: "other", Request: w.host("hub").request}); err == nil {
		t.Error("made over something else")
	}
	if _, err := Open(w.c.config); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("opened twice: %v", err)
	}
}

func TestTokensOverTheWire(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	l := w.invite(InviteOptions{})
	a := w.host("alpha")
	if err := a.join(l); err != nil {
		t.Fatal(err)
	}
	if err := a.join(l); err != nil { // the answer may have been lost
		t.Error(err)
	}
	wantRefusal(t, w.host("beta").join(l), enrol.TokenUsed)
	tampered := w.invite(InviteOptions{})
	tampered.Secret[3] ^= 1
	wantRefusal(t, w.host("beta").join(tampered), enrol.TokenUnknown)
	short := w.invite(InviteOptions{Expires: time.Nanosecond})
	time.Sleep(1100 * time.Millisecond) // lines count to the second
	wantRefusal(t, w.host("beta").join(short), enrol.TokenExpired)
	other := w.invite(InviteOptions{})
	other.Collective = "another"
	wantRefusal(t, w.host("beta").join(other), enrol.OtherCollective)
	for _, o := range []InviteOptions{{Expires: -1}, {Expires: 31 * 24 * time.Hour}, {Name: "Not a name"}, {Name: "alpha"}} {
		if _, err := w.c.Invite(o); err == nil {
			t.Errorf("invites with %+v", o)
		}
	}
}

// Of two hosts that use one token at once, one gets it.
func TestTwoJoinsAtOnce(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	for _, same := range []bool{true, false} {
		l := w.invite(InviteOptions{})
		hosts := []*host{w.host("x"), w.host("x")}
		if !same {
			hosts = []*host{w.host("y"), w.host("z")}
		}
		errs := make([]error, len(hosts))
		var running sync.WaitGroup
		for i, h := range hosts {
			running.Go(func() { _, errs[i] = enrol.Join(t.Context(), l, h.request, nil) })
		}
		running.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("both, or none: %v", errs)
		}
		wantRefusal(t, errors.Join(errs...), enrol.TokenUsed)
	}
}

func TestTwoMembersWithOneName(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	w.member("laptop")
	l := w.invite(InviteOptions{})
	second := w.host("laptop")
	r := wantRefusal(t, second.join(l), enrol.NameTaken)
	if r.Proposal != "laptop-2" {
		t.Fatalf("proposes %q", r.Proposal)
	}
	if err := second.named(r.Proposal).join(l); err != nil {
		t.Errorf("as proposed: %v", err)
	}
	r = wantRefusal(t, w.host("x").join(w.invite(InviteOptions{Name: "tower"})), enrol.NameDiffers)
	if r.Proposal != "tower" {
		t.Errorf("proposes %q", r.Proposal)
	}
	wantRefusal(t, second.named("third").join(w.invite(InviteOptions{})), enrol.KeyTaken)
}

// A host whose clock is a day off learns it from the coordinator, and the token stays valid.
func TestClocksOnJoining(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	for _, off := range []time.Duration{24 * time.Hour, -24 * time.Hour} {
		l := w.invite(InviteOptions{})
		w.shift(off)
		r := wantRefusal(t, w.host("laptop").join(l), enrol.ClockWrong)
		if (r.Off+off).Abs() > time.Minute || !strings.Contains(r.Error(), "24h0m0s") {
			t.Errorf("off by %v: it says %v, %v", off, r.Off, r)
		}
		w.shift(0)
		if err := w.host("laptop" + map[bool]string{true: "-a", false: "-b"}[off > 0]).join(l); err != nil {
			t.Error(err)
		}
	}
}

// A member renews although the coordinator's clock is a day off, and learns of it.
func TestClocksOnRenewing(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	a := w.member("alpha")
	w.shift(12 * time.Hour)
	welcome, err := enrol.Renew(t.Context(), a.id, a.welcome.Coordinators, nil)
	if err != nil {
		t.Fatal(err)
	}
	if (welcome.Off + 12*time.Hour).Abs() > time.Minute {
		t.Errorf("it says %v", welcome.Off)
	}
}

func TestCrashWhileJoining(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, thief := w.host("alpha"), w.host("beta")
	w.run()
	l := w.invite(InviteOptions{})
	w.crash()
	// The token is used, and the crash comes before anything was signed.
	request, err := collective.ParseRequest(a.request)
	if err != nil {
		t.Fatal(err)
	}
	r := register.New(rand.IntN)
	file, _, err := register.Open(registrar.RegisterFile(w.dir), testCollective, r)
	if err != nil {
		t.Fatal(err)
	}
	_, e, err := r.Admit(register.Applicant{Secret: l.Secret, Name: "alpha", Key: request.Key()}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Save(r, *e); err != nil {
		t.Fatal(err)
	}
	file.Close()
	w.open()
	w.run()
	l.Coordinators = w.c.addresses.Coordinators()
	wantRefusal(t, thief.join(l), enrol.TokenUsed)
	if err := a.join(l); err != nil {
		t.Fatalf("the same host again: %v", err)
	}
	// It was signed, and the crash comes before the answer is out.
	first := a.id.Self()
	w.reopen()
	w.run()
	l.Coordinators = w.c.addresses.Coordinators()
	wantRefusal(t, thief.join(l), enrol.TokenUsed)
	if err := a.join(l); err != nil {
		t.Fatalf("the same host again: %v", err)
	}
	if second := a.id.Self(); second.Subnet != first.Subnet || second.Name != first.Name || second.Key != first.Key {
		t.Errorf("first %+v, then %+v", first, second)
	}
	if n := len(w.c.Members()); n != 2 {
		t.Errorf("%d members", n)
	}
}

// A lost register is made again from the records of issued certificates: no name and no subnet is given twice, and
// no token that may have been used is valid.
func TestRegisterLost(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	a := w.member("alpha")
	l := w.invite(InviteOptions{})
	w.loseRegister()
	if p := w.c.Status().Problems; len(p) == 0 || !strings.Contains(p[0], "missing") {
		t.Errorf("it tells %q", p)
	}
	l.Coordinators = w.c.addresses.Coordinators()
	wantRefusal(t, w.host("beta").join(l), enrol.TokenUnknown)
	wantRefusal(t, w.host("alpha").join(w.invite(InviteOptions{})), enrol.NameTaken)
	b := w.member("beta")
	if b.id.Self().Subnet.Overlaps(a.id.Self().Subnet) {
		t.Errorf("%v was given twice", b.id.Self().Subnet)
	}
	a.welcome.Coordinators = w.c.addresses.Coordinators()
	if err := a.renew(); err != nil {
		t.Errorf("alpha is a member still: %v", err)
	}
}

// A register that is cut off at the end of a line looks undamaged. The records of issued certificates show that a
// member is missing, and a token that may have been used is no longer valid.
func TestRegisterCutOffAtALine(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	l := w.invite(InviteOptions{})
	before, err := os.ReadFile(registrar.RegisterFile(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.host("alpha").join(l); err != nil {
		t.Fatal(err)
	}
	w.crash()
	if err := os.WriteFile(registrar.RegisterFile(w.dir), before, 0o600); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.run()
	l.Coordinators = w.c.addresses.Coordinators()
	wantRefusal(t, w.host("beta").join(l), enrol.TokenUnknown)
	if s := w.c.Status(); len(s.Problems) == 0 || s.Members != 2 {
		t.Errorf("status %+v", s)
	}
}

func TestRenewalsAreBounded(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	a := w.member("alpha")
	was := a.id.Self()
	if err := a.renew(); err != nil {
		t.Fatal(err)
	}
	if is := a.id.Self(); is.Serial == was.Serial || is.Subnet != was.Subnet {
		t.Errorf("was %+v, is %+v", was, is)
	}
	for range registrar.RenewalBurst {
		if err := a.renew(); err != nil {
			if r := wantRefusal(t, err, enrol.TooMany); r.After == 0 {
				t.Error("does not say when to ask again")
			}
			return
		}
	}
	t.Error("renews as often as it likes")
}

func TestRenewalOfAnEndedCertificate(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	a := w.host("alpha")
	if err := a.join(w.invite(InviteOptions{})); err != nil {
		t.Fatal(err)
	}
	// Only the coordinator's time passes; whether TLS accepts the member's certificate makes no difference.
	w.shift(collective.MemberValidity + register.Grace - time.Hour)
	if _, err := enrol.Renew(t.Context(), a.id, a.welcome.Coordinators, nil); err != nil {
		t.Errorf("a laptop that was off: %v", err)
	}
	w.shift(w.shifted() + collective.MemberValidity + register.Grace + time.Hour)
	_, err := enrol.Renew(t.Context(), a.id, a.welcome.Coordinators, nil)
	wantRefusal(t, err, enrol.NotMember)
}

func TestLANsAreAvoided(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	block := netip.PrefixFrom(w.hub.Self().Subnet.Addr(), 16).Masked()
	a := w.host("alpha")
	if err := a.join(w.invite(InviteOptions{}), block); err != nil {
		t.Fatal(err)
	}
	if s := a.id.Self().Subnet; block.Overlaps(s) {
		t.Errorf("%v is in its own LAN %v", s, block)
	}
	b := w.host("beta")
	if err := b.join(w.invite(InviteOptions{}), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("fd00::/8")); err != nil {
		t.Errorf("with odd LANs: %v", err)
	}
}

// A certificate issued by hand while the coordinator runs makes a member: its name is taken at once, it may renew,
// and it can be expelled. Certificates that the coordinator signs itself are not reported as new.
func TestIssuedByHand(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	ca, err := collective.OpenCA(registrar.CADir(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	byHand := func(h *host) {
		t.Helper()
		request, err := collective.ParseRequest(h.request)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := ca.Sign(request, collective.Terms{Name: h.name, Validity: 30 * 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		h.install(signed.Chain, w.hub.Trust().Roots(), w.hub.Trust().Lists())
		h.welcome = alpha.welcome
	}
	beta := w.host("beta")
	byHand(beta)
	wantRefusal(t, w.host("beta").join(w.invite(InviteOptions{})), enrol.NameTaken)
	if err := beta.renew(); err != nil {
		t.Errorf("beta may not renew: %v", err)
	}
	gamma := w.host("gamma")
	byHand(gamma)
	eventually(t, "gamma is a member", 5*time.Second, func() bool {
		return slices.ContainsFunc(w.c.Members(), func(m Member) bool { return m.Name == "gamma" && m.Until.After(time.Now().Add(29*24*time.Hour)) })
	})
	if err := w.c.Expel(t.Context(), "gamma", "it spies"); err != nil {
		t.Error(err)
	}
	if w.hub.Check(gamma.id.Self()) == nil {
		t.Error("gamma's certificate counts still")
	}
	// Another certificate issued by hand does not undo that.
	again := w.host("gamma")
	byHand(again)
	wantRefusal(t, again.renew(), enrol.Expelled)
	wantRefusal(t, gamma.named("other").join(w.invite(InviteOptions{})), enrol.Expelled)

	// A member that gets one by hand keeps the addresses that it had.
	subnet := alpha.id.Self().Subnet
	byHand(alpha)
	if err := alpha.renew(); err != nil {
		t.Error(err)
	}
	if got := alpha.id.Self().Subnet; got != subnet {
		t.Errorf("alpha has %v, had %v", got, subnet)
	}
	if s := w.c.Status(); s.Members != 3 || len(s.Problems) > 0 {
		t.Errorf("status %+v", s)
	}
}
