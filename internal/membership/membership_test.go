package membership

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

const hour = time.Hour

// Two members find each other through the coordinator, also when one changes its record.
func TestMembersFindEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.join("alice", hour).start()
	bob := w.join("bob", hour).start().serves("198.51.100.7")
	alice.Offer(Offer{Roles: []string{directory.RoleClient}})

	got := alice.awaitChoice("bob")[0]
	if got.Port != 45672 || got.Addresses[0] != netip.MustParseAddr("198.51.100.7") {
		t.Errorf("%+v", got)
	}
	bob.serves("198.51.100.8")
	if got := alice.awaitChoice("bob")[0]; got.Addresses[0] != netip.MustParseAddr("198.51.100.8") {
		t.Errorf("after a change: %+v", got)
	}
	s := alice.await("complete", func(s State) bool {
		return s.Bus.Connected && s.Directory.Members == 2 && !s.Directory.Behind && s.Record.Verified != nil && s.Record.Reached != nil
	})
	if s.Trouble != nil || s.Record.Err != nil || !*s.Record.Reached || len(s.Chosen) != 1 || s.Renewal.Next.Before(time.Now()) {
		t.Errorf("%+v", s)
	}
	if s := bob.await("complete", func(s State) bool { return s.Directory.Members == 2 }); len(s.Chosen) != 0 {
		t.Errorf("bob chose %v", s.Chosen)
	}
}

// A certificate is renewed, the connection is opened again with it, and the record is signed again.
func TestRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.join("bob", hour).start().serves("198.51.100.7")
	first := bob.await("published", func(s State) bool { return s.Record.Verified != nil }).Self
	w.setValidity(2 * hour)
	bob.tell(func(time.Time) { bob.renewing.needed = true }) // as if the time had come
	s := bob.await("renewed", func(s State) bool {
		return s.Self.Serial != first.Serial && s.Bus.Connects == 2 && s.Record.Verified.Holder.Serial == s.Self.Serial
	})
	if s.Renewal.Last.IsZero() || s.Renewal.Err != nil || !s.Self.NotAfter.After(first.NotAfter.Add(time.Minute)) {
		t.Errorf("%+v", s)
	}
	if e, err := LoadEnrolment(bob.dir); err != nil || e.BusJWT != *bob.jwt.Load() || len(e.Coordinators) != 1 {
		t.Errorf("kept: %+v, %v", e, err)
	}
}

// A member that was away beyond the end of its certificate becomes a member again automatically.
func TestEndedCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.join("bob", time.Millisecond)
	time.Sleep(10 * time.Millisecond)
	if bob.id.Usable() == nil {
		t.Fatal("it has not ended")
	}
	bob.start().serves("198.51.100.7")
	bob.await("a member", func(s State) bool { return s.Bus.Connected && s.Record.Verified != nil })
	if err := bob.id.Usable(); err != nil {
		t.Error(err)
	}
}

// Without a coordinator a member works from its copy, and finds the coordinator when it is back.
func TestCoordinatorAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.join("alice", hour).start()
	w.join("bob", hour).start().serves("198.51.100.7")
	alice.awaitChoice("bob")
	alice.stop()
	w.close()

	alice.start()
	alice.awaitChoice("bob")
	s := alice.await("unconnected", func(s State) bool { return s.Bus.Err != nil && s.Directory.AskErr != nil })
	if s.Bus.Connected || !s.Directory.Behind || s.Directory.Members != 1 {
		t.Errorf("%+v", s)
	}
	w.open()
	alice.await("connected", func(s State) bool { return s.Bus.Connected && !s.Directory.Behind })
}

// While renewals fail, a member keeps trying, and reports why.
func TestCoordinatorAwayAtRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.join("bob", 20*time.Second)
	w.close()
	bob.start()
	s := bob.await("failing", func(s State) bool { return s.Renewal.Failures > 0 })
	if !errors.Is(s.Renewal.Err, enrol.ErrUnreachable) || !s.Renewal.Next.After(time.Now()) {
		t.Errorf("%+v", s.Renewal)
	}
	w.open()
	bob.await("renewed", func(s State) bool { return !s.Renewal.Last.IsZero() && s.Bus.Connected })
}

// All members drop an expelled member within seconds. It learns why, and keeps running.
func TestExpulsion(t *testing.T) {
	t.Parallel()
	for what, brief := range map[string]bool{"by message": false, "by HTTPS": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.brief = brief
			alice := w.join("alice", hour).start()
			bob := w.join("bob", hour).start().serves("198.51.100.7")
			alice.awaitChoice("bob")
			begin := time.Now()
			w.expel("bob", "sent spam")
			alice.awaitChoice()
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("alice used bob for %v", took)
			}
			s := bob.await("told", func(s State) bool { return s.Renewal.Expelled != "" && !s.Bus.Connected })
			if !strings.Contains(s.Renewal.Expelled, "sent spam") || !s.Renewal.Next.After(begin) {
				t.Errorf("%+v", s.Renewal)
			}
		})
	}
}

// A wrong clock is reported with both times.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.off = 24 * time.Hour
	bob := w.join("bob", 5*time.Second).start()
	s := bob.await("told", func(s State) bool { return s.Renewal.Err != nil })
	if r, ok := errors.AsType[*enrol.Refusal](s.Renewal.Err); !ok || r.Reason != enrol.ClockWrong || !strings.Contains(r.Why, "behind") {
		t.Errorf("%v", s.Renewal.Err)
	}
}

// Files damaged by a power cut are put aside, and made again.
func TestHalfWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.join("alice", hour).start()
	w.join("bob", hour).start().serves("198.51.100.7")
	alice.awaitChoice("bob")
	alice.stop()
	for _, name := range []string{directoryFile, enrolmentFile} {
		path := filepath.Join(alice.dir, name)
		info := must(os.Stat(path))(t)
		if err := os.Truncate(path, info.Size()/2); err != nil {
			t.Fatal(err)
		}
	}
	alice.start()
	s := must(alice.State(t.Context()))(t)
	if s.Trouble == nil || !strings.Contains(s.Trouble.Error(), enrolmentFile) {
		t.Errorf("trouble: %v", s.Trouble)
	}
	alice.awaitChoice("bob")
	s = alice.await("whole", func(s State) bool { return s.Bus.Connected && s.Trouble == nil })
	if !errors.Is(s.Directory.LoadErr, directory.ErrDamaged) {
		t.Errorf("the directory: %v", s.Directory.LoadErr)
	}
}

// A coordinator asks a member to check whether another is reachable at the addresses it published.
func TestCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	addrs := []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}
	for _, name := range []string{"bob", "carol", "dave", "eve"} {
		other := w.join(name, hour).start()
		offer := Offer{Addresses: addrs, Port: 45672, Roles: []string{directory.RoleWaypoint}, Kinds: []string{"in-band"}}
		if name == "eve" {
			offer.Addresses = addrs[:1]
		}
		offer.Punch = name == "carol"
		other.Offer(offer)
	}
	alice := w.join("alice", hour)
	tried := make(chan netip.AddrPort, 16)
	alice.reach = func(name string, at netip.AddrPort, punch bool) error {
		tried <- at
		if punch != (name == "carol") {
			t.Errorf("%s is tried by hole punching: %v", name, punch)
		}
		if name == "dave" {
			return fmt.Errorf("no route: %w", ErrCannotTell)
		}
		if name != "bob" || at.Addr().Is4() {
			return errors.New("no answer\nat all")
		}
		return nil
	}
	alice.start()
	alice.await("complete", func(s State) bool { return s.Bus.Connected && s.Directory.Members == 4 })
	for _, name := range []string{"eve", "dave", "bob", "carol"} {
		w.tellOne("alice", enrol.TopicCheck, enrol.Check{ID: name, Name: name, Addresses: addrs, Port: 45672, Within: 5})
	}
	for range 2 {
		c := <-w.checked
		if c.Reachable != (c.ID == "bob") || (c.Why == "") != c.Reachable || strings.Contains(c.Why, "\n") {
			t.Errorf("%+v", c)
		}
	}
	alice.stop() // when eve, which did not ask for this, has been given up
	if len(tried) != 6 || len(w.checked) > 0 {
		t.Errorf("%d addresses were tried", len(tried))
	}
}

// What coordinators found out about reachability is used, on connecting and later.
func TestReachability(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.word.Unreachable = []string{"alice"}
	alice := w.join("alice", hour).start()
	alice.await("told", func(s State) bool { return s.Record.Reached != nil && !*s.Record.Reached })
	w.tell(enrol.TopicReachability, enrol.Reachability{At: time.Now()})
	alice.await("told", func(s State) bool { return *s.Record.Reached })
	w.tell(enrol.TopicReachability, enrol.Reachability{At: w.word.At.Add(-time.Minute), Unreachable: []string{"alice"}}) // late
	w.tell(enrol.TopicReachability, "nonsense")
	w.tell(enrol.TopicReachability, enrol.Reachability{At: time.Now(), Unreachable: []string{"bob"}})
	s := alice.await("told", func(s State) bool { return len(s.Word.Unreachable) > 0 })
	if !*s.Record.Reached {
		t.Error("an old word counts")
	}
}

// Roots that changed reach members while they are connected.
func TestRootsChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.join("alice", hour).start()
	alice.await("connected", func(s State) bool { return s.Bus.Connected })
	next := must(w.root.Successor(t.TempDir()))(t)
	roots := must(os.ReadFile(next.CertFile()))(t)
	lists := must(os.ReadFile(next.CRLFile()))(t)
	if _, err := w.ca.TakeTrust(roots, lists); err != nil {
		t.Fatal(err)
	}
	w.tell(enrol.TopicTrust, enrol.NewTrustMessage(w.trust()))
	alice.await("with two roots", func(State) bool {
		return strings.Count(string(alice.id.Trust().Roots()), "BEGIN CERTIFICATE") == 2
	})
}

// A member that was expelled while it was disconnected learns of it as soon as a coordinator is back.
func TestExpelledWhileAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.join("bob", hour).start().serves("198.51.100.7")
	bob.await("published", func(s State) bool { return s.Record.Verified != nil })
	w.close()
	w.mu.Lock()
	w.expelled["bob"] = "sent spam"
	w.mu.Unlock()
	if _, err := w.ca.Revoke("bob", collective.PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	if _, err := w.hub.TakeTrust(nil, w.trust().Lists()); err != nil {
		t.Fatal(err)
	}
	w.open()
	bob.await("told", func(s State) bool { return strings.Contains(s.Renewal.Expelled, "sent spam") })
	if err := bob.id.Problem(); err != nil {
		t.Errorf("beside that it was expelled, it has a problem: %v", err)
	}
}

// A host that moved to another network reconnects at once.
func TestNetworkChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.join("alice", hour).start()
	alice.await("connected", func(s State) bool { return s.Bus.Connected })
	alice.NetworkChanged()
	alice.await("connected anew", func(s State) bool { return s.Bus.Connected && s.Bus.Connects == 2 })
}

// A waypoint reports what it enforces when that changes, and to coordinators that are back. Other members report
// nothing.
func TestEnforced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.join("bob", hour).start().serves("198.51.100.7")
	bob.await("published", func(s State) bool { return s.Record.Verified != nil })
	alice := w.join("alice", hour)
	taken := make(chan struct{}, 8)
	alice.trusted = func() { taken <- struct{}{} }
	alice.start()
	told := func(what string, n int) {
		t.Helper()
		alice.await(what, func(State) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			all := w.enforced["alice"]
			return len(all) == n && all[n-1] == enrol.HashTrust(w.trust())
		})
	}
	alice.await("connected", func(s State) bool { return s.Bus.Connected })
	alice.Enforced(alice.id.Trust())
	told("told", 1)
	for len(taken) > 0 {
		<-taken
	}
	w.expel("bob", "sent spam")
	for enrol.HashTrust(alice.id.Trust()) != enrol.HashTrust(w.trust()) { // an earlier change may still be on its way
		<-taken
	}
	alice.Enforced(alice.id.Trust())
	told("told of another", 2)
	w.close()
	w.open()
	told("told to who is back", 3)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.enforced) != 1 {
		t.Errorf("told: %v", w.enforced)
	}
}
