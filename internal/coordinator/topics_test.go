package coordinator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/coordinator/records"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/enrol"
)

func TestRecordsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha, beta := w.member("alpha"), w.member("beta")
	good := alpha.record()
	if err := alpha.publish(good); err != nil {
		t.Fatal(err)
	}
	signed := func(h *host, r directory.Record) *directory.SignedRecord {
		s, err := directory.Sign(r, h.id.Chain(), h.id.Sign)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	changed := func(h *host, f func(*directory.Record)) *directory.SignedRecord {
		r := h.record()
		f(&r)
		return signed(h, r)
	}
	for name, s := range map[string]*directory.SignedRecord{
		"another's, signed by the other": changed(alpha, func(*directory.Record) {}),
		"in another's name":              changed(beta, func(r *directory.Record) { r.Name = "alpha" }),
		"another's subnet":               changed(beta, func(r *directory.Record) { r.Subnet = alpha.id.Self().Subnet }),
		"another collective":             changed(beta, func(r *directory.Record) { r.Collective = "other" }),
		"from tomorrow": changed(beta, func(r *directory.Record) {
			r.Issued, r.Expires = r.Issued.Add(24*time.Hour), r.Expires.Add(24*time.Hour)
		}),
		"from yesterday": changed(beta, func(r *directory.Record) {
			r.Issued, r.Expires = r.Issued.Add(-48*time.Hour), r.Expires.Add(-48*time.Hour)
		}),
		"tampered": func() *directory.SignedRecord {
			s := changed(beta, func(*directory.Record) {})
			s.Payload = []byte(strings.Replace(string(s.Payload), "192.0.2.7", "192.0.2.8", 1))
			return s
		}(),
	} {
		wantBusRefusal(t, beta.send(s))
		if d := alpha.directory(); d.Len() != 1 {
			t.Errorf("%s: is in the directory", name)
		}
	}
	if _, err := beta.ask(enrol.TopicRecord, []byte("nonsense")); err == nil {
		t.Error("takes nonsense")
	}
	if _, err := beta.ask("no-such-topic", nil); err == nil {
		t.Error("answers whatever is asked")
	}
	older := good
	older.Sequence--
	wantBusRefusal(t, alpha.publish(older))
	if v, there := beta.directory().Get("alpha"); !there || v.Record.Sequence != good.Sequence {
		t.Error("the good record is gone")
	}
}

// A record that is sent again, because its answer was lost, changes nothing and is accepted.
func TestRecordSentAgain(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	alpha.shown(alpha.record())
	s := alpha.sign(alpha.record())
	for range 3 {
		if err := alpha.send(s); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.c.Status().Directory.Revision; n != 2 { // the epoch is the first
		t.Errorf("at revision %d", n)
	}
}

// A member that changes its record too often is told to wait.
func TestRecordsThatChangeTooOften(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	r := alpha.record()
	var err error
	for n := 0; err == nil; n++ {
		if n > 4*records.Burst { // on a slow machine, some more are allowed meanwhile
			t.Fatalf("none of %d records was refused", n)
		}
		r.Sequence++
		if err = alpha.publish(r); err != nil && n < records.Burst {
			t.Fatalf("record %d: %v", n, err)
		}
	}
	if refusal := wantBusRefusal(t, err); !strings.Contains(refusal.Why, "too often") {
		t.Error(refusal)
	}
}

func TestDirectorySurvives(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	w.waypoint("alpha")
	before := w.c.Status().Directory
	w.reopen()
	w.run()
	if after := w.c.Status().Directory; after.Members != 1 || after.Epoch != before.Epoch || after.Revision != before.Revision {
		t.Errorf("before %+v, after %+v", before, after)
	}
	// A lost store is replaced by a new one, filled from the coordinator's own copy.
	w.crash()
	if err := os.RemoveAll(filepath.Join(busDir(w.dir), "store")); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.run()
	if after := w.c.Status().Directory; after.Members != 1 || after.Epoch <= before.Epoch {
		t.Errorf("before %+v, with a new store %+v", before, after)
	}
}

// A store that silently lost changes counts as another store, so that members list it again.
func TestStoreThatWentBack(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	r := alpha.record()
	if err := alpha.publish(r); err != nil {
		t.Fatal(err)
	}
	w.crash()
	old := filepath.Join(t.TempDir(), "store")
	store := filepath.Join(busDir(w.dir), "store")
	if err := os.CopyFS(old, os.DirFS(store)); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.run()
	alpha.welcome.BusServers = w.c.addresses.BusServers()
	alpha.connect()
	r.Sequence, r.Port = r.Sequence+1, 7
	if err := alpha.publish(r); err != nil {
		t.Fatal(err)
	}
	before := w.c.Status().Directory
	w.crash() // with the copy
	if err := os.RemoveAll(store); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(store, os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.run()
	if after := w.c.Status().Directory; after.Epoch <= before.Epoch || after.Members != 1 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	w.c.records.View(func(d *directory.Directory) {
		if v, _ := d.Get("alpha"); v.Record.Port != 7 {
			t.Errorf("the newer record is lost: %+v", v.Record)
		}
	})
}

// A member that floods is cut off, others are served, and it comes back when it has kept quiet.
func TestFlood(t *testing.T) { // alone: it uses all processor time
	w := runWorld(t)
	alpha, beta := w.member("alpha"), w.member("beta")
	for i := 0; alpha.bus.State().Connected && i < 200_000; i++ {
		alpha.bus.Tell(enrol.TopicChecked, []byte("{}"))
		if i%500 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	eventually(t, "alpha is cut off", 10*time.Second, func() bool { return !alpha.bus.State().Connected })
	if s := w.c.Status(); s.Floods != 1 || s.Counts.Refused == 0 {
		t.Errorf("status %+v", s)
	}
	// Messages of others may be lost in the flood; they send them again.
	eventually(t, "others are served", 20*time.Second, func() bool { return beta.publish(beta.record()) == nil })
	if r := wantRefusal(t, alpha.renew(), enrol.TooMany); r.After == 0 {
		t.Error("does not say when to come back")
	}
	w.shift(banFor + time.Second)
	if err := alpha.renew(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "alpha is back", 20*time.Second, func() bool { return alpha.bus.State().Connected })
}

// The roots change, and members take the new ones because the old one has stated them.
func TestRootRotation(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	root, err := collective.OpenCA(registrar.RootDir(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	next, err := root.Successor(filepath.Join(t.TempDir(), "next"))
	if err != nil {
		t.Fatal(err)
	}
	nextTrust, err := next.Trust()
	if err != nil {
		t.Fatal(err)
	}
	ca, err := collective.OpenCA(registrar.CADir(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.TakeTrust(nextTrust.Roots(), nextTrust.Lists()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "alpha has the new root", 5*time.Second, func() bool {
		data := alpha.last(enrol.TopicTrust)
		if data == nil {
			return false
		}
		m := fromJSON[enrol.TrustMessage](t, data)
		if !m.Whole() {
			return false
		}
		if _, err := alpha.id.TakeTrust([]byte(m.Roots), []byte(m.Lists)); err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(alpha.id.Trust().Roots()), "BEGIN CERTIFICATE") == 2
	})
	// A member that joins now gets both roots; its invitation names the root above the coordinator's certificate.
	if err := w.host("beta").join(w.invite(InviteOptions{})); err != nil {
		t.Error(err)
	}
	if err := alpha.renew(); err != nil {
		t.Error(err)
	}
}

// A root may sign members itself, in place of a signer.
func TestRootInPlaceOfASigner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.crash()
	if err := os.RemoveAll(registrar.CADir(w.dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(registrar.RootDir(w.dir), registrar.CADir(w.dir)); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.run()
	a := w.member("alpha")
	if a.id.Self().Issuer.Serial != "" {
		t.Error("a signer has signed")
	}
	if err := w.c.Expel(t.Context(), "alpha", "why"); err != nil {
		t.Error(err)
	}
	wantRefusal(t, a.renew(), enrol.Expelled)
}

func TestTrustIsToldOnAsking(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	whole, err := alpha.ask(enrol.TopicTrust, nil)
	if err != nil {
		t.Fatal(err)
	}
	brief, err := alpha.ask(enrol.TopicTrust, []byte(enrol.HashTrust(alpha.id.Trust())))
	if err != nil {
		t.Fatal(err)
	}
	a, b := fromJSON[enrol.TrustMessage](t, whole), fromJSON[enrol.TrustMessage](t, brief)
	if !a.Whole() || b.Whole() || a.Hash != b.Hash || a.Hash != enrol.HashTrust(alpha.id.Trust()) {
		t.Errorf("whole %v %s, brief %v %s", a.Whole(), a.Hash, b.Whole(), b.Hash)
	}
	large := enrol.TrustMessage{Lists: strings.Repeat("x", bus.MaxPayload), Hash: "h"}
	if data, err := encodeTrust(large); err != nil || fromJSON[enrol.TrustMessage](t, data).Whole() {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// While its store is unavailable, a coordinator reports that and does everything else.
func TestStarting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.c.handle(context.Background(), bus.Request{From: "x", Topic: enrol.TopicDirectory}); !errors.Is(err, records.ErrStarting) {
		t.Error(err)
	}
	if err := w.c.bus.TellAll("trust", nil); !errors.Is(err, bus.ErrNotConnected) {
		t.Error(err)
	}
}

// A coordinator whose clock is a day off loses no record by it: it accepts the refused ones when its clock is
// right again.
func TestRecordsWithAWrongClock(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha, beta := w.member("alpha"), w.member("beta")
	w.shift(24 * time.Hour)
	if err := alpha.publish(func() directory.Record {
		r := alpha.record()
		r.Expires = r.Issued.Add(5 * 24 * time.Hour)
		return r
	}()); err != nil {
		t.Errorf("a day ahead: %v", err)
	}
	w.shift(-24 * time.Hour)
	if r := wantBusRefusal(t, beta.publish(beta.record())); !strings.Contains(r.Why, "the clock is behind") {
		t.Errorf("a day behind: %v", r)
	}
	w.shift(0)
	if err := beta.publish(beta.record()); err != nil {
		t.Error(err)
	}
	if d := alpha.directory(); d.Len() != 2 {
		t.Errorf("%d members in the directory", d.Len())
	}
}
