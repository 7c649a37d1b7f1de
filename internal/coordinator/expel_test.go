package coordinator

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/enrol"
)

// wantOut checks that a member is expelled: beta sees it, and alpha itself.
func (w *world) wantOut(alpha, beta *host) {
	w.t.Helper()
	eventually(w.t, "beta is told whom to believe no more", 5*time.Second, func() bool {
		if data := beta.last(enrol.TopicTrust); data != nil {
			m := fromJSON[enrol.TrustMessage](w.t, data)
			if m.Whole() {
				if _, err := beta.id.TakeTrust([]byte(m.Roots), []byte(m.Lists)); err != nil {
					w.t.Fatal(err)
				}
			}
		}
		_, revoked := errors.AsType[*collective.RevokedError](beta.id.Check(alpha.id.Self()))
		return revoked
	})
	if w.hub.Check(alpha.id.Self()) == nil {
		w.t.Error("the coordinator's own host believes it still")
	}
	eventually(w.t, "alpha is off the bus", 5*time.Second, func() bool { return !alpha.bus.State().Connected })
	if _, there := beta.directory().Get("alpha"); there {
		w.t.Error("alpha is in the directory still")
	}
	wantRefusal(w.t, alpha.renew(), enrol.Expelled)
	r := wantRefusal(w.t, w.host("alpha").join(w.invite(InviteOptions{})), enrol.NameTaken)
	if r.Proposal == "" {
		w.t.Error("no other name is proposed")
	}
	wantRefusal(w.t, alpha.named("other").join(w.invite(InviteOptions{})), enrol.Expelled)
	if s := w.c.Status(); len(s.Untold) > 0 || s.Expelled != 1 {
		w.t.Errorf("status %+v", s)
	}
}

func TestExpel(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	beta, alpha := w.member("beta"), w.waypoint("alpha")
	start := time.Now()
	if err := w.c.Expel(t.Context(), "alpha", "it spies"); err != nil {
		t.Fatal(err)
	}
	w.wantOut(alpha, beta)
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
	if err := w.c.Expel(t.Context(), "alpha", "again"); err != nil {
		t.Errorf("again: %v", err)
	}
	for _, m := range w.c.Members() {
		if m.Name == "alpha" && (m.Expelled == nil || m.Expelled.Why != "it spies" || !m.Expelled.Told) {
			t.Errorf("members say %+v", m)
		}
	}
	for name, why := range map[string]string{"hub": "x", "nobody": "x", "beta": " "} {
		if err := w.c.Expel(t.Context(), name, why); err == nil {
			t.Errorf("expels %s because of %q", name, why)
		}
	}
	// It survives a new start, as does that others are members.
	w.reopen()
	w.run()
	alpha.welcome.Coordinators = w.c.addresses.Coordinators()
	beta.welcome.Coordinators = w.c.addresses.Coordinators()
	wantRefusal(t, alpha.renew(), enrol.Expelled)
	if err := beta.renew(); err != nil {
		t.Error(err)
	}
}

// A member that leaves is gone for all at once, like an expelled one, but is not counted as expelled. An invitation gives its
// name to another host, which is a member like any other. Nobody can end the coordinator's own membership.
func TestLeave(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	beta, alpha := w.member("beta"), w.waypoint("alpha")
	if err := enrol.Leave(t.Context(), alpha.id, alpha.welcome.Coordinators); err != nil {
		t.Fatal(err)
	}
	if err := enrol.Leave(t.Context(), alpha.id, alpha.welcome.Coordinators); err != nil {
		t.Errorf("again, as the answer may have been lost: %v", err)
	}
	eventually(t, "alpha's certificate is revoked, and it is out of the directory and off the bus", 10*time.Second, func() bool {
		_, there := beta.directory().Get("alpha")
		return w.hub.Check(alpha.id.Self()) != nil && !there && !alpha.bus.State().Connected
	})
	eventually(t, "all members are told", 5*time.Second, func() bool { return len(w.c.Status().Untold) == 0 })
	if s := w.c.Status(); s.Members != 2 || s.Expelled != 0 || len(s.Problems) > 0 {
		t.Errorf("status %+v", s)
	}
	for _, m := range w.c.Members() {
		if m.Name == "alpha" {
			t.Errorf("is listed: %+v", m)
		}
	}
	wantRefusal(t, alpha.renew(), enrol.NotMember)

	wantRefusal(t, w.host("alpha").join(w.invite(InviteOptions{})), enrol.NameTaken)
	next := w.host("alpha")
	if err := next.join(w.invite(InviteOptions{Name: "alpha"})); err != nil {
		t.Fatal(err)
	}
	next.connect()
	if err := next.publish(next.record()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new alpha is in the directory", 5*time.Second, func() bool { _, there := beta.directory().Get("alpha"); return there })
	if err := next.renew(); err != nil {
		t.Error(err)
	}
	wantRefusal(t, enrol.Leave(t.Context(), w.hub, next.welcome.Coordinators), enrol.Malformed)

	w.reopen()
	w.run()
	next.welcome.Coordinators = w.c.addresses.Coordinators()
	if err := next.renew(); err != nil {
		t.Errorf("after a new start: %v", err)
	}
	if s := w.c.Status(); s.Members != 3 || s.Expelled != 0 {
		t.Errorf("status %+v", s)
	}
}

// After a crash at any step, an expulsion is completed by itself.
func TestCrashWhileExpelling(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string]func(*testing.T, *world){
		"the intent is written": func(*testing.T, *world) {},
		"certificates are revoked": func(t *testing.T, w *world) {
			w.revoke("alpha", collective.PrivilegeWithdrawn)
		},
		"JWTs are revoked": func(t *testing.T, w *world) {
			if _, err := w.c.registrar.Revoke("alpha"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := runWorld(t)
			beta, alpha := w.member("beta"), w.waypoint("alpha")
			w.listen, w.busListen = w.c.addresses.Bound()
			w.reopen()
			if err := w.c.Expel(t.Context(), "alpha", "it spies"); !errors.Is(err, ErrNotTold) {
				t.Fatalf("without a bus: %v", err)
			}
			steps(t, w)
			w.reopen()
			if got := w.c.Status().Untold; len(got) != 1 {
				t.Errorf("untold: %q", got)
			}
			w.run() // where the members know it
			eventually(t, "beta is back", 20*time.Second, func() bool { return beta.bus.State().Connected })
			eventually(t, "the expulsion is complete", 20*time.Second, func() bool { return len(w.c.Status().Untold) == 0 })
			// Beta may have reconnected after the announcement: then it asks, as members do.
			answer, err := beta.ask(enrol.TopicTrust, nil)
			if err != nil {
				t.Fatal(err)
			}
			beta.receive(bus.Message{Topic: enrol.TopicTrust, Data: answer})
			w.wantOut(alpha, beta)
		})
	}
}

// A renewal that is in progress while its member is expelled has no effect.
func TestExpelWhileRenewing(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha, beta := w.member("alpha"), w.member("beta")
	done, renewed := make(chan *enrol.Welcome), make(chan struct{})
	go func() {
		var last *enrol.Welcome
		defer func() { done <- last }()
		for {
			got, err := enrol.Renew(t.Context(), alpha.id, alpha.welcome.Coordinators, nil)
			if errors.Is(err, enrol.Expelled) {
				return
			}
			if err == nil {
				if last == nil {
					close(renewed)
				}
				last = got
			}
		}
	}()
	<-renewed
	if err := w.c.Expel(t.Context(), "alpha", "it spies"); err != nil {
		t.Fatal(err)
	}
	last := <-done
	trust := w.hub.Trust()
	if m, err := last.Member(trust); err == nil {
		t.Errorf("the last certificate of %s counts", m.Name)
	}
	alpha.mu.Lock()
	alpha.jwt = last.BusJWT
	alpha.mu.Unlock()
	w.wantOut(alpha, beta)
}

// A certificate that the operator revokes by hand is announced to all, and not renewed.
func TestRevokedByHand(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha, beta := w.member("alpha"), w.member("beta")
	w.revoke("alpha", collective.KeyCompromise)
	eventually(t, "the coordinator has seen it", 5*time.Second, func() bool {
		time.Sleep(300 * time.Millisecond) // one may not renew all the time
		return errors.Is(alpha.renew(), enrol.Expelled)
	})
	w.wantOut(alpha, beta)
	if err := beta.renew(); err != nil {
		t.Error(err)
	}
	// The expulsion outlives the certificate, and the loss of the register.
	w.shift(2 * collective.MemberValidity)
	wantRefusal(t, alpha.renew(), enrol.Expelled)
	w.shift(0)
	w.loseRegister()
	w.shift(2 * collective.MemberValidity)
	alpha.welcome.Coordinators = w.c.addresses.Coordinators()
	wantRefusal(t, alpha.renew(), enrol.Expelled)
}

// A superseded certificate is replaced by another.
func TestSupersededByHand(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	w.revoke("alpha", collective.Superseded)
	eventually(t, "the coordinator has seen it", 5*time.Second, func() bool { return w.hub.Check(alpha.id.Self()) != nil })
	if err := alpha.renew(); err != nil {
		t.Error(err)
	}
}

// An expelled member's JWT is invalid, whatever other certificate its key has.
func TestJWTOfTheExpelled(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	start := time.Now()
	if err := w.c.Expel(t.Context(), "alpha", "to see"); err != nil {
		t.Fatal(err)
	}
	ca, err := collective.OpenCA(registrar.CADir(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	request, err := collective.ParseRequest(alpha.request)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := ca.Sign(request, collective.Terms{Name: "alpha"})
	if err != nil {
		t.Fatal(err)
	}
	if err := alpha.id.TakeCertificate(signed.Chain); err != nil {
		t.Fatal(err)
	}
	const tries = 5 * time.Second // it has tried to come back by then
	eventually(t, "alpha is kept out", 30*time.Second, func() bool {
		st := alpha.bus.State()
		return time.Since(start) > accountPause+tries && !st.Connected && errors.Is(st.Err, bus.ErrNotLetIn)
	})
}

// Waypoints confirm that they refuse an expelled member. One that is connected and does not confirm is waited for
// and named. One that is away is named too. Members that are no waypoints have nothing to confirm.
func TestEnforcement(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	w.waypoint("alpha")
	beta, gamma, delta := w.waypoint("beta"), w.waypoint("gamma"), w.waypoint("delta")
	w.member("client")
	confirm := func(h *host, hash string) {
		t.Helper()
		if err := h.bus.Tell(enrol.TopicEnforced, []byte(hash)); err != nil {
			t.Fatal(err)
		}
	}
	before := w.c.registrar.Message().Hash
	for _, h := range []*host{beta, gamma, delta} {
		confirm(h, before)
	}
	eventually(t, "all but alpha enforce what there is", 5*time.Second, func() bool { return w.c.enforcement().Confirmed == 3 })
	delta.bus.Close()
	if err := w.c.Expel(t.Context(), "alpha", "it spies"); err != nil {
		t.Fatal(err)
	}
	confirm(beta, w.c.registrar.Message().Hash)
	confirm(gamma, "not a hash")
	eventually(t, "delta is away", 5*time.Second, func() bool { return len(w.c.enforcement().Away) == 1 })
	brief, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	want := Enforcement{Of: 3, Confirmed: 1, Waiting: []string{"gamma"}, Away: []string{"delta"}}
	if got := w.c.Enforcement(brief); !reflect.DeepEqual(got, want) || time.Since(start) < 200*time.Millisecond {
		t.Errorf("%+v after %v", got, time.Since(start))
	}
	enforces := map[string]bool{}
	for _, m := range w.c.Members() {
		if m.Enforces != nil {
			enforces[m.Name] = *m.Enforces
		}
	}
	if !maps.Equal(enforces, map[string]bool{"beta": true, "gamma": false, "delta": false}) {
		t.Errorf("members say %v", enforces)
	}
	// It is counted when it has confirmed, at once.
	time.AfterFunc(100*time.Millisecond, func() { confirm(gamma, w.c.registrar.Message().Hash) })
	want = Enforcement{Of: 3, Confirmed: 2, Away: []string{"delta"}}
	if got := w.c.Enforcement(t.Context()); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// Where the records of issued certificates are lost, the certificate that a member shows is revoked nevertheless.
// Until the records are back, the operator is warned that other certificates may still be valid.
func TestExpelWithoutRecords(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	beta, alpha := w.member("beta"), w.waypoint("alpha")
	issued := filepath.Join(registrar.CADir(w.c.config.Dir), "issued")
	saved := filepath.Join(t.TempDir(), "saved")
	if err := errors.Join(os.CopyFS(saved, os.DirFS(issued)), os.RemoveAll(issued), os.Mkdir(issued, 0o700)); err != nil {
		t.Fatal(err)
	}
	err := w.c.Expel(t.Context(), "alpha", "it spies")
	if err == nil || errors.Is(err, ErrNotTold) || !strings.Contains(err.Error(), "back from its backup") {
		t.Fatalf("the operator is told: %v", err)
	}
	w.wantOut(alpha, beta)
	if p := w.c.Status().Problems; len(p) != 1 || !strings.Contains(p[0], "alpha is expelled, but") {
		t.Errorf("problems %q", p)
	}
	w.reopen()
	if p := w.c.Status().Problems; !slices.ContainsFunc(p, func(s string) bool { return strings.Contains(s, "alpha is expelled, but") }) {
		t.Errorf("after a new start: %q", p)
	}
	w.run()
	if err := errors.Join(os.RemoveAll(issued), os.CopyFS(issued, os.DirFS(saved))); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Expel(t.Context(), "alpha", "it spies"); err != nil {
		t.Errorf("with its records again: %v", err)
	}
	if p := w.c.Status().Problems; slices.ContainsFunc(p, func(s string) bool { return strings.Contains(s, "alpha is expelled, but") }) {
		t.Errorf("still problems %q", p)
	}
}
