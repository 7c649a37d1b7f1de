package membership

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// A record goes without the addresses that coordinators do not take, and with them once they do.
func TestWithheldAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine, elsewhere := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	w.unshown = []netip.Addr{elsewhere}
	alice := w.join("alice", hour).start()
	alice.Offer(Offer{Addresses: []netip.Addr{mine, elsewhere}, Port: 45672, Roles: []string{directory.RoleWaypoint}})
	s := alice.await("published without one", func(s State) bool { return s.Record.Verified != nil })
	byAddress := cmpopts.EquateComparable(netip.Addr{})
	if diff := cmp.Diff([]netip.Addr{mine}, s.Record.Verified.Record.Addresses, byAddress); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]netip.Addr{elsewhere}, s.Record.Withheld, byAddress); diff != "" || s.Record.Err != nil {
		t.Errorf("%s, %v", diff, s.Record.Err)
	}
	w.mu.Lock()
	w.unshown = nil
	w.mu.Unlock()
	alice.await("published with both", func(s State) bool {
		return len(s.Record.Verified.Record.Addresses) == 2 && len(s.Record.Withheld) == 0
	})
}

// A record that is refused is offered less and less often.
func TestWithheldPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w withheld
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		o := Offer{Addresses: []netip.Addr{a, b}}
		var pauses []time.Duration
		for range 12 {
			if got := w.without(o, time.Now()); len(got.Addresses) != 2 {
				t.Fatalf("offers %v", got.Addresses)
			}
			w.refused([]netip.Addr{b}, time.Now())
			if got := w.without(o, time.Now()); len(got.Addresses) != 1 || len(o.Addresses) != 2 {
				t.Fatalf("offers %v of %v", got.Addresses, o.Addresses)
			}
			pauses = append(pauses, time.Until(w.until))
			time.Sleep(time.Until(w.until))
		}
		if pauses[0] != firstWithheld || pauses[1] != 2*firstWithheld || pauses[11] != lastWithheld {
			t.Errorf("pauses %v", pauses)
		}
		w.taken(directory.Record{Addresses: []netip.Addr{a, b}})
		if w.times != 0 || w.addresses != nil {
			t.Errorf("%+v", w)
		}
	})
}

// A member tries an address that no record in the directory has if the question comes with a record that has it,
// and only then; and never a private one of somebody else's network.
func TestCheckWithARecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.join("alice", hour), w.join("bob", hour)
	tried := make(chan string, 8)
	alice.reach = func(_ string, at netip.AddrPort, _ bool) error {
		tried <- at.Addr().String()
		return nil
	}
	alice.own = []netip.Addr{netip.MustParseAddr("192.168.1.5")}
	alice.start().await("connected", func(s State) bool { return s.Bus.Connected })
	now := time.Now()
	at := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.168.9.9")}
	r := directory.Record{
		Collective: bob.id.Self().Collective, Name: "bob", Sequence: 1, Issued: now, Expires: now.Add(time.Minute),
		Addresses: at, Port: 45672, Roles: []string{directory.RoleWaypoint},
	}
	signed := must(directory.Sign(r, bob.id.Chain(), bob.id.Sign))(t)
	record := must(signed.Encode())(t)
	forged := must(directory.Sign(r, bob.id.Chain(), alice.id.Sign))(t)
	for _, c := range []enrol.Check{
		{ID: "of another name", Name: "carol", Addresses: at[:1], Port: 45672, Record: record},
		{ID: "at another port", Name: "bob", Addresses: at[:1], Port: 53, Record: record},
		{ID: "not named", Name: "bob", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Port: 45672, Record: record},
		{ID: "forged", Name: "bob", Addresses: at[:1], Port: 45672, Record: must(forged.Encode())(t)},
		{ID: "nonsense", Name: "bob", Addresses: at[:1], Port: 45672, Record: []byte("nonsense")},
		{ID: "private", Name: "bob", Addresses: at[1:2], Port: 45672, Record: record},
		{ID: "shared", Name: "bob", Addresses: at[2:], Port: 45672, Record: record},
		{ID: "good", Name: "bob", Addresses: at[:1], Port: 45672, Record: record},
	} {
		c.Within = 5
		w.tellOne("alice", enrol.TopicCheck, c)
		if c.ID != "shared" && c.ID != "good" {
			time.Sleep(50 * time.Millisecond) // a few at a time are tried
			continue
		}
		if got := <-w.checked; got.ID != c.ID || !got.Reachable {
			t.Errorf("%+v", got)
		}
	}
	close(tried)
	var all []string
	for at := range tried {
		all = append(all, at)
	}
	if diff := cmp.Diff([]string{"192.168.9.9", "192.0.2.1"}, all); diff != "" {
		t.Errorf("tried: %s", diff)
	}
}

// Waypoints in private networks are chosen where this host may be in the same one.
func TestPrivateWaypoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.join("far", hour).start().serves("10.0.0.1")
	w.join("near", hour).start().serves("192.168.3.4")
	w.join("public", hour).start().serves("192.0.2.7")
	alice := w.join("alice", hour)
	alice.own = []netip.Addr{netip.MustParseAddr("192.168.1.5")}
	alice.start().await("told of all", func(s State) bool { return s.Directory.Members == 3 })
	alice.awaitChoice("near", "public")
}

// A member whose files come from an older copy renews at once, as its records are outdated by those of its later
// certificate.
func TestOlderFilesPutBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.join("alice", hour)
	older := must(os.ReadFile(filepath.Join(alice.filesDir(), "me.crt")))(t)
	time.Sleep(1100 * time.Millisecond) // certificates begin with whole seconds
	later := w.sign(must(alice.id.RenewalRequest())(t), hour)
	if err := alice.id.TakeCertificate(later.Chain); err != nil {
		t.Fatal(err)
	}
	alice.start().serves("192.0.2.1")
	alice.await("published", func(s State) bool { return s.Record.Verified != nil })
	serial := alice.id.Self().Serial
	alice.stop()
	if err := os.WriteFile(filepath.Join(alice.filesDir(), "me.crt"), older, 0o644); err != nil {
		t.Fatal(err)
	}
	alice.id.Refresh()
	back := alice.id.Self().Serial
	if back == serial {
		t.Fatal("the older certificate is not taken")
	}
	alice.start().serves("192.0.2.2")
	alice.await("published again", func(s State) bool {
		v := s.Record.Verified
		return v != nil && v.Record.Addresses[0].String() == "192.0.2.2" && v.Holder.Serial != back && v.Holder.Serial != serial
	})
}
