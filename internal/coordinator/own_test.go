package coordinator

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/enrol"
)

// A coordinator that was off for longer than its own certificate lasts comes back by itself.
func TestCoordinatorThatWasOff(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	w.crash()
	ca, err := collective.OpenCA(registrar.CADir(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	request, err := w.hub.RenewalRequest()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := collective.ParseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	short, err := ca.Sign(parsed, collective.Terms{Name: "hub", Subnet: w.hub.Self().Subnet, Validity: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.hub.TakeCertificate(short.Chain); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(short.Member.NotAfter) + 100*time.Millisecond)
	if w.hub.Usable() == nil {
		t.Fatal("its certificate has not ended")
	}
	w.open()
	w.run()
	if err := w.hub.Usable(); err != nil {
		t.Error(err)
	}
	alpha.welcome.Coordinators = w.c.addresses.Coordinators()
	if err := alpha.renew(); err != nil {
		t.Error(err)
	}
	if s := w.hub.Self().Subnet; s != short.Member.Subnet {
		t.Errorf("its subnet is %v, was %v", s, short.Member.Subnet)
	}
}

// The signer is renewed in time while the root's key is there; without it, the coordinator continues as long as it
// can.
func TestSignerNearItsEnd(t *testing.T) {
	t.Parallel()
	w := runWorld(t)
	alpha := w.member("alpha")
	before := w.c.Status().Until
	w.shift(time.Until(before) - 60*24*time.Hour + time.Hour)
	aside := filepath.Join(t.TempDir(), "root")
	if err := os.Rename(registrar.RootDir(w.dir), aside); err != nil {
		t.Fatal(err)
	}
	if err := w.c.registrar.RenewOwn(); err != nil || !w.c.Status().Until.Equal(before) {
		t.Errorf("without the root: %v", err)
	}
	if err := os.Rename(aside, registrar.RootDir(w.dir)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(before.Add(-365*24*time.Hour)) + 1100*time.Millisecond) // ends are in whole seconds
	if err := w.c.registrar.RenewOwn(); err != nil {
		t.Fatal(err)
	}
	if after := w.c.Status().Until; !after.After(before) {
		t.Errorf("ended on %v, ends on %v", before, after)
	}
	w.shift(0)
	if err := alpha.renew(); err != nil {
		t.Error(err)
	}
}

// A member whose certificate the root has issued by hand is one like others.
func TestMemberOfTheRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	root, err := collective.OpenCA(registrar.RootDir(w.dir))
	if err != nil {
		t.Fatal(err)
	}
	alpha := w.host("alpha")
	request, err := collective.ParseRequest(alpha.request)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := root.Sign(request, collective.Terms{Name: "alpha", Validity: 1000 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.reopen()
	w.run()
	beta := w.member("beta")
	alpha.install(signed.Chain, []byte(beta.welcome.Roots), []byte(beta.welcome.Lists))
	alpha.welcome = &enrol.Welcome{Coordinators: w.c.addresses.Coordinators(), BusServers: w.c.addresses.BusServers()}
	byRoot := alpha.id.Self()
	if err := alpha.renew(); err != nil {
		t.Fatal(err)
	}
	alpha.connect()
	if err := w.c.Expel(t.Context(), "alpha", "it spies"); err != nil {
		t.Fatal(err)
	}
	w.wantOut(alpha, beta)
	if beta.id.Check(byRoot) == nil {
		t.Error("the certificate that the root has signed still counts")
	}
}

// Files left by a crash in the middle of Init do not stop the next Init.
func TestInitAfterACrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "coordinator")
	if err := os.MkdirAll(filepath.Join(dir+".new", "ca", "issued"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir}
	if _, err := Init(dir, Founding{Collective: testCollective, Request: w.host("hub").request}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + ".new"); err == nil {
		t.Error("what was left is there still")
	}
}

// A new root makes a new signer, which replaces the old one while the coordinator runs: members stay connected,
// new ones are signed by it, and certificates of the old one can still be revoked.
func TestAnotherSigner(t *testing.T) {
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
	signer := filepath.Join(t.TempDir(), "signer")
	made, err := next.NewSigner(signer)
	if err != nil {
		t.Fatal(err)
	}
	// Its lists must contain what the old signer has revoked.
	if _, err := made.TakeTrust(nil, w.hub.Trust().Lists()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(w.dir, "old"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, move := range [][2]string{{registrar.CADir(w.dir), filepath.Join(w.dir, "old", "first")}, {signer, registrar.CADir(w.dir)}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the coordinator's own certificate is the new signer's", 10*time.Second, func() bool {
		return w.hub.Self().Issuer.Key == made.Key()
	})
	beta := w.member("beta") // its line names the new root
	if beta.id.Self().Issuer.Key != made.Key() {
		t.Error("beta's certificate is not the new signer's")
	}
	oldAlpha := alpha.id.Self()
	if err := alpha.renew(); err != nil { // it does not know the new root yet: the statement makes it follow
		t.Fatal(err)
	}
	if alpha.id.Self().Issuer.Key != made.Key() {
		t.Error("alpha's certificate is not the new signer's")
	}
	if err := w.c.Expel(t.Context(), "alpha", "it spies"); err != nil {
		t.Fatal(err)
	}
	w.wantOut(alpha, beta)
	if beta.id.Check(oldAlpha) == nil {
		t.Error("what the old signer has signed for alpha still counts")
	}
}
