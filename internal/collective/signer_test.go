package collective

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestMembersOfRootAndSignersMeet(t *testing.T) {
	root := newCA(t)
	one, two := newSigner(t, root), newSigner(t, root)
	byRoot := load(t, install(t, root, issue(t, root, Request{Name: "alice"})))
	bySigner := load(t, install(t, one, issue(t, one, Request{Name: "bob"})))
	enrolled := load(t, enrol(t, two, Terms{Name: "carol"}))
	ids := []*Identity{byRoot, bySigner, enrolled}
	for i, a := range ids {
		for _, b := range ids[i+1:] {
			if err := meet(t, a, b); err != nil {
				t.Errorf("%s and %s: %v", a.Name(), b.Name(), err)
			}
		}
	}
	if got, want := enrolled.Self().NotAfter.Sub(enrolled.Self().NotBefore), MemberValidity+backdate; got != want {
		t.Errorf("an enrolled member has %v, want %v", got, want)
	}
	for _, id := range ids {
		if m := id.Self(); m.Collective != "test collective" || m.Issuer.Root == (PublicKey{}) || (m.Issuer.Serial == "") != (id == byRoot) {
			t.Errorf("%+v", m)
		}
	}
}

func TestSignerNeedsNothingOfTheRoot(t *testing.T) {
	root := newCA(t)
	s := newSigner(t, root)
	dir := filepath.Join(t.TempDir(), "carried")
	if err := os.CopyFS(dir, os.DirFS(s.dir)); err != nil {
		t.Fatal(err)
	}
	os.Chmod(filepath.Join(dir, signerKeyFile), 0o600)
	os.RemoveAll(root.dir)
	if _, err := os.Stat(filepath.Join(dir, caKeyFile)); err == nil {
		t.Fatal("the signer's directory has the root's key")
	}
	carried, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := enrol(t, carried, Terms{Name: "alice"})
	id := load(t, f)
	if _, err := carried.Revoke("alice", PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	copyFile(t, carried.CRLFile(), f.CRL)
	id.Refresh()
	var revoked *RevokedError
	if err := id.Usable(); !errors.As(err, &revoked) {
		t.Fatalf("after the revocation: %v", err)
	}
	for what, do := range map[string]func() error{
		"make a signer":   func() error { _, err := carried.NewSigner(t.TempDir()); return err },
		"renew a signer":  func() error { _, err := carried.RenewSigner(carried.Certificate()); return err },
		"make a new root": func() error { _, err := carried.Successor(t.TempDir()); return err },
		"drop the other":  carried.DropOthers,
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "root") {
			t.Errorf("a signer may %s: %v", what, err)
		}
	}
}

func TestRevokedSignerTakesItsMembersWithIt(t *testing.T) {
	root := newCA(t)
	bad, good := newSigner(t, root), newSigner(t, root)
	bobFiles := enrol(t, good, Terms{Name: "bob"})
	bob := load(t, bobFiles)
	malloryFiles := enrol(t, bad, Terms{Name: "mallory"})
	mallory := load(t, malloryFiles)
	if err := meet(t, bob, mallory); err != nil {
		t.Fatal(err)
	}
	was := mallory.Self()
	// A renewed certificate for the same key must not save it.
	renewed, err := root.RenewSigner(bad.Certificate())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := root.Revoke(bad.Subject(), KeyCompromise); err != nil || len(got) != 2 {
		t.Fatalf("revoke the signer: %v, %v", got, err)
	}
	if changed, err := bob.TakeTrust(nil, readAll(t, root.CRLFile())); !changed || err != nil {
		t.Fatal(changed, err)
	}
	var revoked *RevokedError
	if err := bob.Check(was); !errors.As(err, &revoked) || revoked.Signer != serialText(bad.cert.SerialNumber) {
		t.Errorf("an open session: %v", err)
	}
	if _, _, serverErr, _ := handshake(t, bob, mallory, "bob"); !errors.As(serverErr, &revoked) || revoked.Signer == "" {
		t.Errorf("a new session: %v", serverErr)
	}
	signerCerts, _ := parseCertificates(renewed, 1)
	chain := [][]byte{mallory.Chain()[0], signerCerts[0].Raw}
	if _, err := bob.Trust().Verify(chain, time.Now()); !errors.As(err, &revoked) {
		t.Errorf("with the renewed certificate of the revoked signer: %v", err)
	}
	if err := bob.Usable(); err != nil {
		t.Errorf("another signer's member: %v", err)
	}
	if err := bob.Check(load(t, enrol(t, good, Terms{Name: "carol"})).Self()); err != nil {
		t.Error(err)
	}

	if _, err := bad.TakeTrust(nil, readAll(t, root.CRLFile())); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCA(bad.dir); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("a revoked signer opens: %v", err)
	}
	if _, err := root.RenewSigner(bad.Certificate()); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("a revoked signer is renewed: %v", err)
	}
}

// A signer can revoke only certificates that it has signed.
func TestSignerCannotRevokeOthers(t *testing.T) {
	root := newCA(t)
	bad := newSigner(t, root)
	bob := load(t, enrol(t, newSigner(t, root), Terms{Name: "bob"}))
	carol := load(t, enrol(t, newSigner(t, root), Terms{Name: "carol"}))
	// A compromised signer puts another signer's serial number on its own list.
	m := carol.Self()
	if err := bad.issued.add(IssuedCertificate{Serial: m.Serial, Name: "carol", NotBefore: m.NotBefore, NotAfter: m.NotAfter}); err != nil {
		t.Fatal(err)
	}
	if _, err := bad.Revoke("carol", PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	if changed, err := bob.TakeTrust(nil, readAll(t, bad.CRLFile())); !changed || err != nil {
		t.Fatal(changed, err)
	}
	if err := bob.Check(m); err != nil {
		t.Error(err)
	}
	if err := meet(t, bob, carol); err != nil {
		t.Error(err)
	}
}

func TestRenewSigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := newCA(t)
		s := newSigner(t, root)
		old := s.cert
		time.Sleep(300 * 24 * time.Hour)
		before := load(t, enrol(t, s, Terms{Name: "before"}))
		renewed, err := root.RenewSigner(s.Certificate())
		if err != nil {
			t.Fatal(err)
		}
		if s, err = s.TakeSigner(renewed); err != nil {
			t.Fatal(err)
		}
		if _, err := s.TakeSigner(renewed); err == nil {
			t.Error("took the same certificate twice")
		}
		if _, err := s.TakeSigner(encodeCerts(old)); err == nil {
			t.Error("took the old certificate back")
		}
		trust, err := s.Trust()
		if err != nil {
			t.Fatal(err)
		}
		key, _ := keyOf(s.cert)
		if l := trust.lists[key]; !l.list.NextUpdate.Equal(s.NotAfter()) || l.list.Number.Int64() != time.Now().Unix() || !l.issuer.Equal(s.cert) {
			t.Errorf("list %v until %v, want number %d until %v", l.list.Number, l.list.NextUpdate, time.Now().Unix(), s.NotAfter())
		}
		after := load(t, enrol(t, s, Terms{Name: "after"}))
		for _, pair := range [][2]*Identity{{before, after}, {after, before}} {
			if _, err := pair[0].Trust().Verify(pair[1].Chain(), time.Now()); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(70 * 24 * time.Hour) // the old certificate is over
		opened, err := OpenCA(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		load(t, enrol(t, opened, Terms{Name: "later"}))
		time.Sleep(300 * 24 * time.Hour)
		r := must(ParseRequest(must(after.RenewalRequest())(t)))(t)
		if _, err := opened.Sign(r, Terms{Name: "after"}); !errors.Is(err, ErrExpired) {
			t.Errorf("a signer that is over signs: %v", err)
		}
		if _, err := OpenCA(s.dir); !errors.Is(err, ErrExpired) || !strings.Contains(err.Error(), "renewed by the collective's root") {
			t.Errorf("a signer that is over opens: %v", err)
		}
	})
}

func TestSignerBadInput(t *testing.T) {
	root, other := newCA(t), newCA(t)
	s, foreign := newSigner(t, root), newSigner(t, other)
	member := issue(t, root, Request{Name: "alice"})
	sibling := newSigner(t, root)
	for name, cert := range map[string][]byte{
		"another collective's signer": foreign.Certificate(), "a member": readAll(t, member.CertFile),
		"the root itself": root.Certificate(), "nothing": nil, "damaged": []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
	} {
		if _, err := root.RenewSigner(cert); err == nil {
			t.Errorf("renewed %s", name)
		}
		if _, err := s.TakeSigner(cert); err == nil {
			t.Errorf("took %s", name)
		}
	}
	if _, err := s.TakeSigner(sibling.Certificate()); !errors.Is(err, ErrKeyMismatch) {
		t.Errorf("took another signer's: %v", err)
	}
	if _, err := root.TakeSigner(s.Certificate()); err == nil {
		t.Error("a root took a signer's certificate")
	}
	if _, err := root.NewSigner(s.dir); !errors.Is(err, ErrExists) {
		t.Errorf("overwrote a signer: %v", err)
	}
	if _, err := OpenCA(s.dir); err != nil {
		t.Fatal(err)
	}
}

// A signer must not be able to make authorities.
func TestSignerSignsMembersOnly(t *testing.T) {
	root := newCA(t)
	s := newSigner(t, root)
	pub, key, _ := ed25519.GenerateKey(rand.Reader)
	template := authorityTemplate(time.Now(), time.Now().Add(time.Hour))
	template.Subject = pkix.Name{CommonName: "signer:mine", Organization: []string{root.Name()}}
	below, err := createCertificate(template, s.cert, pub, s.key)
	if err != nil {
		t.Fatal(err)
	}
	mine := &CA{dir: t.TempDir(), cert: below, key: key, root: root.cert}
	mine.issued = ledger{mine.dir}
	memberPub, _, _ := ed25519.GenerateKey(rand.Reader)
	leaf, err := createCertificate(&x509.Certificate{
		SerialNumber: newSerial(), Subject: pkix.Name{CommonName: "mallory", Organization: []string{root.Name()}}, DNSNames: []string{"mallory"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}, below, memberPub, key)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := root.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Verify([][]byte{leaf.Raw, below.Raw, s.cert.Raw}, time.Now()); !errors.Is(err, ErrOtherCA) {
		t.Errorf("a signer's signer: %v", err)
	}
	list, err := mine.sign(nil, nextNumber(nil, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := trust.follow(nil, list.encode()); err == nil {
		t.Error("took the list of a signer's signer")
	}
}
