package collective

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// rotation is a collective whose root has made a successor, with a member of either.
type rotation struct {
	old, next           *CA
	oldSigner           *CA
	aliceFiles          Files // of the old root, whose member knows no other yet
	alice               *Identity
	before, both, alone *Trust // content of ca.crt and ca.crl: at first, with both roots, with the new one
}

func rotate(t *testing.T) *rotation {
	t.Helper()
	r := &rotation{old: newCA(t)}
	r.oldSigner = newSigner(t, r.old)
	r.aliceFiles = enrol(t, r.oldSigner, Terms{Name: "alice"})
	r.alice = load(t, r.aliceFiles)
	var err error
	trust := func() *Trust {
		from := r.old
		if r.next != nil {
			from = r.next
		}
		out, err := from.Trust()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	r.before = trust()
	if r.next, err = r.old.Successor(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	r.both = trust()
	// Copied out of the new root's directory, so that r.next can continue with both.
	aside := t.TempDir()
	if err := os.CopyFS(aside, os.DirFS(r.next.dir)); err != nil {
		t.Fatal(err)
	}
	os.Chmod(aside+"/"+caKeyFile, 0o600)
	alone, err := OpenCA(aside)
	if err != nil {
		t.Fatal(err)
	}
	if err := alone.DropOthers(); err != nil {
		t.Fatal(err)
	}
	if r.alone, err = alone.Trust(); err != nil {
		t.Fatal(err)
	}
	return r
}

func take(t *testing.T, id *Identity, trust *Trust) {
	t.Helper()
	if changed, err := id.TakeTrust(trust.Roots(), trust.Lists()); err != nil || !changed {
		t.Fatalf("%v, %v", changed, err)
	}
	if err := id.Problem(); err != nil {
		t.Fatal(err)
	}
}

func TestRotation(t *testing.T) {
	r := rotate(t)
	take(t, r.alice, r.both)
	if changed, err := r.alice.TakeTrust(r.both.Roots(), r.both.Lists()); changed || err != nil {
		t.Fatalf("the same again: %v, %v", changed, err)
	}

	// Certificates of old and new roots and signers, at once.
	newSigner := newSigner(t, r.next)
	bob := load(t, enrol(t, newSigner, Terms{Name: "bob"}))
	carol := load(t, install(t, r.next, issue(t, r.next, Request{Name: "carol"})))
	dave := load(t, install(t, r.old, issue(t, r.old, Request{Name: "dave"})))
	ids := []*Identity{r.alice, bob, carol, dave}
	for i, a := range ids {
		for _, b := range ids[i+1:] {
			if err := meet(t, a, b); err != nil {
				t.Errorf("%s and %s: %v", a.Name(), b.Name(), err)
			}
		}
	}

	// alice renews under the new signer without a restart, then the old root goes.
	request, err := r.alice.RenewalRequest()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.alice.TakeCertificate(sign(t, newSigner, request, Terms{Name: "alice"}).Chain); err != nil {
		t.Fatal(err)
	}
	take(t, r.alice, r.alone)
	again := load(t, r.aliceFiles)
	for _, alice := range []*Identity{r.alice, again} {
		if err := meet(t, alice, bob); err != nil {
			t.Error(err)
		}
		if err := alice.Check(dave.Self()); !errors.Is(err, ErrOtherCA) {
			t.Errorf("a session with the old root's member: %v", err)
		}
		if _, _, serverErr, _ := handshake(t, alice, dave, "alice"); serverErr == nil {
			t.Error("the old root's member is let in")
		}
	}
	if data := readAll(t, r.aliceFiles.CA); bytes.Contains(data, encodeCerts(r.old.cert)) {
		t.Error("ca.crt still has the old root")
	}

	// Nothing brings the old root back, not even the old files.
	for _, old := range []*Trust{r.both, r.before} {
		if _, err := r.alice.TakeTrust(old.Roots(), old.Lists()); !errors.Is(err, ErrNotEndorsed) {
			t.Errorf("went back: %v", err)
		}
	}
	lists := r.both.lists.merge(r.alice.trust.lists).encode()
	if err := errors.Join(os.WriteFile(r.aliceFiles.CRL, lists, 0o644), os.WriteFile(r.aliceFiles.CA, r.both.Roots(), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := r.alice.Check(dave.Self()); !errors.Is(err, ErrOtherCA) {
		t.Errorf("an old ca.crt lets the old root's member in: %v", err)
	}
	r.alice.Refresh()
	if err := r.alice.Problem(); !errors.Is(err, ErrNotEndorsed) {
		t.Errorf("an old ca.crt: %v", err)
	}
}

// A member that was away follows from the roots it knows to today's in one step.
func TestRotationMissed(t *testing.T) {
	r := rotate(t)
	renewed := sign(t, r.next, must(r.alice.RenewalRequest())(t), Terms{Name: "alice"})
	if err := r.alice.TakeCertificate(renewed.Chain); err == nil {
		t.Fatal("took a certificate of a root it does not know")
	}
	take := func() error { _, err := r.alice.TakeTrust(r.alone.Roots(), r.alone.Lists()); return err }
	if err := take(); err != nil {
		t.Fatal(err)
	}
	// The old root is gone, and with it our certificate: we know, and a renewed one fixes it.
	if err := r.alice.Usable(); !errors.Is(err, ErrOtherCA) {
		t.Errorf("cut off: %v", err)
	}
	if err := r.alice.TakeCertificate(renewed.Chain); err != nil {
		t.Fatal(err)
	}
	if err := r.alice.Usable(); err != nil {
		t.Error(err)
	}
	if err := r.alice.Problem(); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestRotationBadInput(t *testing.T) {
	r := rotate(t)
	evil := newCA(t) // of the same name
	evilTrust, err := evil.Trust()
	if err != nil {
		t.Fatal(err)
	}
	evilNext, err := evil.Successor(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stated, err := evilNext.Trust()
	if err != nil {
		t.Fatal(err)
	}
	statement := func(roots []byte) []byte {
		_, after, _ := bytes.Cut(roots, []byte("-----BEGIN "+pemRoots))
		return append([]byte("-----BEGIN "+pemRoots), after...)
	}
	both := r.both.Roots()
	tampered := func(at int) []byte {
		block, _ := pem.Decode(statement(both))
		b := slices.Clone(block.Bytes)
		b[(at+len(b))%len(b)] ^= 1
		return append(encodeCerts(r.both.roots.certs...), pem.EncodeToMemory(&pem.Block{Type: pemRoots, Bytes: b})...)
	}
	bySigner, err := r.before.roots.state([]*x509.Certificate{r.old.cert}, r.old.key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	payload := bySigner.statements[0].signed[ed25519.SignatureSize:]
	bySigner.statements[0].signed = append(ed25519.Sign(r.oldSigner.key, append([]byte(rootsContext), payload...)), payload...)
	before, beforeLists := readAll(t, r.aliceFiles.CA), readAll(t, r.aliceFiles.CRL)
	for name, roots := range map[string][]byte{
		"nobody stated":            encodeCerts(r.old.cert, r.next.cert),
		"of another collective":    evilTrust.Roots(),
		"stated by another":        stated.Roots(),
		"one added to a statement": append(encodeCerts(evil.cert), both...),
		"statement of others":      append(encodeCerts(r.old.cert, evil.cert), statement(both)...),
		"signature tampered":       tampered(3),
		"number tampered":          tampered(90),
		"payload tampered":         tampered(-90),
		"statement of a signer":    bySigner.encode(),
		"a member's certificate":   readAll(t, r.aliceFiles.Certificate),
		"a signer's certificate":   append(encodeCerts(r.old.cert), r.oldSigner.Certificate()...),
		"twice the same":           append(encodeCerts(r.next.cert), both...),
		"statements in disorder":   append(slices.Clone(r.alone.Roots()), statement(both)...),
		"half written":             both[:len(both)/2],
		"half a statement":         append(encodeCerts(r.both.roots.certs...), pem.EncodeToMemory(&pem.Block{Type: pemRoots, Bytes: []byte("short")})...),
		"garbage":                  []byte("hello"),
	} {
		if changed, err := r.alice.TakeTrust(roots, append(slices.Clone(r.both.Lists()), evilTrust.Lists()...)); err == nil || changed {
			t.Errorf("took roots: %s", name)
		}
		// Whatever lists come with them.
		if set, err := parseRoots(roots); err == nil {
			if err := set.follows(r.before.roots); !errors.Is(err, ErrNotEndorsed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// Good roots without the new one's list, and with a list that is not theirs.
	if _, err := r.alice.TakeTrust(both, nil); err == nil {
		t.Error("took a root without its revocation list")
	}
	if _, err := r.alice.TakeTrust(both, append(slices.Clone(r.both.Lists()), evilTrust.Lists()...)); !errors.Is(err, ErrOtherCA) {
		t.Errorf("took a stranger's list: %v", err)
	}
	if !bytes.Equal(readAll(t, r.aliceFiles.CA), before) || !bytes.Equal(readAll(t, r.aliceFiles.CRL), beforeLists) {
		t.Fatal("the files have changed")
	}
	take(t, r.alice, r.both)
}

// A root that has thought better of its successor: the statement that made it must not come back.
func TestRotationGivenUp(t *testing.T) {
	old := newCA(t)
	alice := load(t, install(t, old, issue(t, old, Request{Name: "alice"})))
	first := must(old.Trust())(t)
	if _, err := old.Successor(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	both := must(old.Trust())(t)
	if err := old.DropOthers(); err != nil {
		t.Fatal(err)
	}
	alone := must(old.Trust())(t)
	take(t, alice, both)
	take(t, alice, alone)
	for name, old := range map[string]*Trust{"the first": first, "both": both} {
		if _, err := alice.TakeTrust(old.Roots(), old.Lists()); !errors.Is(err, ErrNotEndorsed) {
			t.Errorf("went back to %s: %v", name, err)
		}
		if err := old.roots.follows(alone.roots); !errors.Is(err, ErrNotEndorsed) {
			t.Errorf("%s follow: %v", name, err)
		}
	}
}

// The files of an authority as they lie there are good for members, also if the power went while it
// dropped a root.
func TestDroppedRootsLists(t *testing.T) {
	r := rotate(t)
	mixed := r.both.lists.merge(r.alone.lists).encode()
	for name, from := range map[string]*Trust{"one that knows the old root only": r.before, "one that knows both": r.both, "one that knows the new root": r.alone} {
		next, _, _, err := from.follow(r.alone.Roots(), mixed)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(next.lists) != 1 {
			t.Errorf("%s: has %d lists", name, len(next.lists))
		}
	}
	if err := r.next.DropOthers(); err != nil {
		t.Fatal(err)
	}
	if lists, foreign, err := parseLists(readAll(t, r.next.CRLFile()), []*x509.Certificate{r.next.cert}); err != nil || foreign > 0 || len(lists) != 1 {
		t.Errorf("ca.crl has %d lists and %d of others: %v", len(lists), foreign, err)
	}
}

// Whatever a power cut leaves, the member starts again.
func TestPowerCutWhileTakingRoots(t *testing.T) {
	r := rotate(t)
	for _, step := range []*Trust{r.both, r.alone} {
		lists := r.alice.trust.lists.merge(step.lists)
		if err := durable.Replace(r.aliceFiles.CRL, lists.encode(), 0o644); err != nil {
			t.Fatal(err)
		}
		// Here the power goes: ca.crl is new, ca.crt is not.
		id := load(t, r.aliceFiles)
		if err := id.Problem(); err != nil {
			t.Fatal(err)
		}
		if step == r.alone {
			break
		}
		take(t, r.alice, step)
	}
}

// The files may also be replaced by hand, in any order.
func TestRotationByHand(t *testing.T) {
	for _, first := range []string{"roots", "lists"} {
		r := rotate(t)
		lists := r.alice.trust.lists.merge(r.both.lists).encode() // the new root does not know the old one's signer
		steps := []func(){
			func() { os.WriteFile(r.aliceFiles.CA, r.both.Roots(), 0o644) },
			func() { os.WriteFile(r.aliceFiles.CRL, lists, 0o644) },
		}
		if first == "lists" {
			slices.Reverse(steps)
		}
		carol := load(t, install(t, r.next, issue(t, r.next, Request{Name: "carol"})))
		steps[0]()
		if _, _, serverErr, _ := handshake(t, r.alice, carol, "alice"); serverErr == nil {
			t.Errorf("%s first: carol got in before all was there", first)
		}
		if err := r.alice.Usable(); err != nil {
			t.Errorf("%s first: %v", first, err)
		}
		steps[1]()
		if err := meet(t, r.alice, carol); err != nil {
			t.Errorf("%s first: %v", first, err)
		}
	}
}

func TestSuccessorOfSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newCA(t)
		known, err := first.Trust()
		if err != nil {
			t.Fatal(err)
		}
		ca := first
		for range 5 {
			time.Sleep(5 * 365 * 24 * time.Hour)
			next, err := ca.Successor(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * 24 * time.Hour)
			if err := next.DropOthers(); err != nil {
				t.Fatal(err)
			}
			ca = next
		}
		if err := ca.DropOthers(); err == nil {
			t.Error("dropped what is not there")
		}
		today, err := ca.Trust()
		if err != nil {
			t.Fatal(err)
		}
		if today.roots.number() != 10 {
			t.Errorf("%d statements", today.roots.number())
		}
		got, newRoots, _, err := known.follow(today.Roots(), today.Lists())
		if err != nil || !newRoots || !sameCerts(got.roots.certs, []*x509.Certificate{ca.cert}) {
			t.Fatal(newRoots, err)
		}
		// A dropped root can no longer state anything.
		if _, err := today.roots.state([]*x509.Certificate{first.cert}, first.key, time.Now()); err == nil {
			t.Error("a dropped root states the roots")
		}
	})
}
