package collective

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

func TestTakeLists(t *testing.T) {
	root := newCA(t)
	s := newSigner(t, root)
	f := enrol(t, s, Terms{Name: "alice"})
	alice := load(t, f)
	bob, carol := load(t, enrol(t, s, Terms{Name: "bob"})), load(t, install(t, root, issue(t, root, Request{Name: "carol"})))
	old := readAll(t, s.CRLFile())

	// Each authority's list comes separately, as over a bus.
	for _, step := range []struct {
		by  *CA
		who *Identity
	}{{s, bob}, {root, carol}} {
		if err := alice.Check(step.who.Self()); err != nil {
			t.Fatal(err)
		}
		if _, err := step.by.Revoke(step.who.Name(), PrivilegeWithdrawn); err != nil {
			t.Fatal(err)
		}
		if changed, err := alice.TakeTrust(nil, readAll(t, step.by.CRLFile())); !changed || err != nil {
			t.Fatal(changed, err)
		}
		var revoked *RevokedError
		if err := alice.Check(step.who.Self()); !errors.As(err, &revoked) || revoked.Name != step.who.Name() || revoked.Signer != "" {
			t.Errorf("%s: %v", step.who.Name(), err)
		}
	}
	// Neither older lists nor a restart remove known revocations.
	if changed, err := alice.TakeTrust(nil, old); changed || err != nil {
		t.Errorf("older lists: %v, %v", changed, err)
	}
	for _, id := range []*Identity{alice, load(t, f)} {
		for _, who := range []*Identity{bob, carol} {
			if id.Check(who.Self()) == nil || id.Check(Member{Name: who.Name(), Serial: who.Self().Serial}) == nil {
				t.Errorf("%s is back", who.Name())
			}
		}
	}
	// An older file, put there by hand.
	if err := durable.Replace(f.CRL, old, 0o644); err != nil {
		t.Fatal(err)
	}
	alice.Refresh()
	if alice.Check(bob.Self()) == nil || alice.Problem() == nil {
		t.Errorf("an older file: %v", alice.Problem())
	}
}

// A file put there by hand must have all that the one before had, except for signers that no longer count.
func TestListMissing(t *testing.T) {
	root := newCA(t)
	s := newSigner(t, root)
	f := enrol(t, s, Terms{Name: "alice"})
	id := load(t, f)
	copyFile(t, root.CRLFile(), f.CRL)
	id.Refresh()
	if err := id.Problem(); err == nil || !strings.Contains(err.Error(), "lacks the revocation list of "+s.Subject()) {
		t.Errorf("without the signer's: %v", err)
	}
	gone := newSigner(t, root)
	if _, err := id.TakeTrust(nil, readAll(t, gone.CRLFile())); err != nil {
		t.Fatal(err)
	}
	if _, err := root.Revoke(gone.Subject(), KeyCompromise); err != nil {
		t.Fatal(err)
	}
	if _, err := s.TakeTrust(nil, readAll(t, root.CRLFile())); err != nil {
		t.Fatal(err)
	}
	copyFile(t, s.CRLFile(), f.CRL) // does not contain the removed signer
	id.Refresh()
	if err := id.Problem(); err != nil {
		t.Errorf("without that of a signer that was revoked: %v", err)
	}
}

// A file that is cut off (a copy that was interrupted) must not pass for one with fewer lists.
func TestListsCutOff(t *testing.T) {
	root := newCA(t)
	data := readAll(t, newSigner(t, root).CRLFile())
	for cut := range data {
		if bytes.HasPrefix(bytes.TrimLeft(data[cut:], "\n"), []byte("-----BEGIN ")) {
			continue // cut between two blocks: cannot be detected
		}
		if lists, _, err := parseLists(data[:cut], []*x509.Certificate{root.cert}); err == nil && len(lists) < 2 {
			t.Fatalf("took the first %d of %d bytes", cut, len(data))
		}
	}
}

// Files that were put together by hand may hold a signer's certificate of last year, too.
func TestRenewedSignerInLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := newCA(t)
		s := newSigner(t, root)
		old := s.Certificate()
		time.Sleep(time.Hour)
		renewed := must(root.RenewSigner(old))(t)
		list := readAll(t, s.CRLFile())
		for _, data := range [][]byte{slices.Concat(old, renewed, list), slices.Concat(renewed, old, list), append(list, renewed...)} {
			lists, foreign, err := parseLists(data, []*x509.Certificate{root.cert})
			if err != nil || foreign > 0 {
				t.Fatal(foreign, err)
			}
			key, _ := keyOf(s.cert)
			if got := encodeCerts(lists[key].issuer); !bytes.Equal(got, renewed) {
				t.Error("the older certificate counts")
			}
		}
	})
}

func TestTakeListsFaults(t *testing.T) {
	root, other := newCA(t), newCA(t)
	s := newSigner(t, root)
	f := enrol(t, s, Terms{Name: "alice"})
	alice := load(t, f)
	before := readAll(t, f.CRL)
	if _, err := s.Revoke("alice", KeyCompromise); err != nil {
		t.Fatal(err)
	}
	good := readAll(t, s.CRLFile())
	spoil := func(kind string, at int) []byte {
		var out []byte
		for block, rest := pem.Decode(good); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == kind {
				block.Bytes[(at+len(block.Bytes))%len(block.Bytes)] ^= 1
			}
			out = append(out, pem.EncodeToMemory(block)...)
		}
		return out
	}
	// A list in the signer's name, signed with another key.
	forged, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(99), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)},
		&x509.Certificate{RawSubject: s.cert.RawSubject, SubjectKeyId: s.cert.SubjectKeyId, KeyUsage: x509.KeyUsageCRLSign, PublicKey: other.cert.PublicKey}, other.key)
	if err != nil {
		t.Fatal(err)
	}
	forgedPEM := pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: forged})
	list := pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: must(s.Trust())(t).lists[PublicKey(s.cert.PublicKey.(ed25519.PublicKey))].list.Raw})
	for name, lists := range map[string][]byte{
		"another collective's":      readAll(t, other.CRLFile()),
		"with another collective's": append(slices.Clone(good), readAll(t, other.CRLFile())...),
		"without its signer":        list,
		"signature tampered":        spoil(pemCRL, -1),
		"contents tampered":         spoil(pemCRL, -120),
		"its signer tampered":       spoil(pemCertificate, -1),
		"forged":                    append(s.Certificate(), forgedPEM...),
		"half written":              good[:len(good)/5],
		"damaged":                   pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: []byte("hello")}),
		"too many":                  bytes.Repeat(list, maxLists+1),
		"garbage":                   []byte("hello"),
		"a certificate for a list":  readAll(t, f.Certificate),
	} {
		if changed, err := alice.TakeTrust(nil, lists); changed || err == nil {
			t.Errorf("took lists: %s", name)
		}
	}
	if !bytes.Equal(readAll(t, f.CRL), before) || alice.Usable() != nil {
		t.Fatal("the lists have changed")
	}
	if changed, err := alice.TakeTrust(nil, good); !changed || err != nil {
		t.Fatal(changed, err)
	}

	none := f
	none.CRL = ""
	id := load(t, none)
	if _, err := id.TakeTrust(nil, good); err == nil || !strings.Contains(err.Error(), "identity.crl") {
		t.Errorf("without a file for it: %v", err)
	}
}

// Receiving the same lists again repairs damaged files, but does not touch files that somebody is replacing.
func TestTakeTrustRepairsFiles(t *testing.T) {
	root, other := newCA(t), newCA(t)
	f := enrol(t, root, Terms{Name: "alice"})
	id := load(t, f)
	roots, lists := readAll(t, f.CA), readAll(t, f.CRL)
	for name, spoil := range map[string]func() error{
		"lists cut off":  func() error { return os.Truncate(f.CRL, 100) },
		"lists gone":     func() error { return os.Remove(f.CRL) },
		"roots cut off":  func() error { return os.Truncate(f.CA, 100) },
		"both are empty": func() error { return errors.Join(os.Truncate(f.CA, 0), os.Truncate(f.CRL, 0)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		id.Refresh()
		if id.Problem() == nil || id.Usable() != nil {
			t.Errorf("%s: problem %v, usable %v", name, id.Problem(), id.Usable())
		}
		if changed, err := id.TakeTrust(roots, lists); changed || err != nil {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
		if err := id.Problem(); err != nil || load(t, f).Problem() != nil {
			t.Errorf("%s: not fixed: %v", name, err)
		}
	}
	copyFile(t, other.CertFile(), f.CA)
	if changed, err := id.TakeTrust(roots, lists); changed || err != nil {
		t.Error(changed, err)
	}
	if !bytes.Equal(readAll(t, f.CA), readAll(t, other.CertFile())) {
		t.Error("took away the roots that somebody put there")
	}
}

// Expelled members stay out even if the disk is full or cannot be written. That is reported as a problem until the
// files can be written again, as a restart would forget the expulsion.
func TestTakeListsWithoutDisk(t *testing.T) {
	root := newCA(t)
	f := enrol(t, root, Terms{Name: "alice"})
	alice, bob := load(t, f), load(t, enrol(t, root, Terms{Name: "bob"}))
	old := readAll(t, f.CRL)
	if _, err := root.Revoke("bob", PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	gone := func(id *Identity) bool {
		_, revoked := errors.AsType[*RevokedError](id.Check(bob.Self()))
		return revoked
	}
	// A directory at the file's path cannot be replaced by a file, even by root.
	if err := errors.Join(os.Remove(f.CRL), os.MkdirAll(f.CRL+"/x", 0o700)); err != nil {
		t.Fatal(err)
	}
	if changed, err := alice.TakeTrust(nil, readAll(t, root.CRLFile())); !changed || err != nil {
		t.Fatal(changed, err)
	}
	alice.Refresh()
	if !gone(alice) || alice.Usable() != nil {
		t.Errorf("bob is in still, or alice is out: %v", alice.Usable())
	}
	if err := alice.Problem(); err == nil || !strings.Contains(err.Error(), "cannot be saved") {
		t.Errorf("problem %v", err)
	}
	// The disk works again, and holds the earlier content.
	if err := errors.Join(os.RemoveAll(f.CRL), os.WriteFile(f.CRL, old, 0o600)); err != nil {
		t.Fatal(err)
	}
	alice.Refresh()
	if !gone(alice) {
		t.Error("bob is back by an old file")
	}
	alice.mu.Lock()
	alice.tried = alice.tried.Add(-saveEvery)
	alice.mu.Unlock()
	alice.Refresh()
	alice.Refresh()
	if err := alice.Problem(); err != nil {
		t.Error(err)
	}
	if !gone(alice) || !gone(load(t, f)) {
		t.Error("it is not known after a new start")
	}
}

// A list names only certificates that have not ended: with certificates valid for days it stays short.
func TestListForgetsWhatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newCA(t)
		on := func() (out []string) {
			key, _ := keyOf(ca.cert)
			for _, e := range must(ca.Trust())(t).lists[key].list.RevokedCertificateEntries {
				out = append(out, serialText(e.SerialNumber))
			}
			return out
		}
		var weeks []Issued
		for day := range 30 {
			i := issue(t, ca, Request{Name: "alice", Validity: MemberValidity, Reissue: true})
			weeks = append(weeks, i)
			if _, err := ca.Revoke(i.Serial, Superseded); err != nil {
				t.Fatal(err)
			}
			want := []string{}
			for _, w := range weeks {
				if time.Now().Before(w.NotAfter.Truncate(24*time.Hour).AddDate(0, 0, 3)) {
					want = append(want, w.Serial)
				}
			}
			if got := on(); !slices.Equal(got, want) {
				t.Fatalf("day %d: %d on the list, want %d", day, len(got), len(want))
			}
			time.Sleep(24 * time.Hour)
		}
		if n := len(on()); n > 11 {
			t.Errorf("%d on the list", n)
		}
		long := issue(t, ca, Request{Name: "bob", Validity: 300 * 24 * time.Hour})
		if _, err := ca.Revoke("bob", KeyCompromise); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * 24 * time.Hour)
		issue(t, ca, Request{Name: "carol"})
		if _, err := ca.Revoke("carol", KeyCompromise); err != nil {
			t.Fatal(err)
		}
		if got := on(); len(got) != 2 || got[0] != long.Serial {
			t.Errorf("on the list: %v", got)
		}
	})
}

func TestVerifyFaults(t *testing.T) {
	root, other := newCA(t), newCA(t)
	s := newSigner(t, root)
	id := load(t, enrol(t, s, Terms{Name: "alice"}))
	trust, chain, now := id.Trust(), id.Chain(), time.Now()
	if m, err := trust.Verify(chain, now); err != nil || m != id.Self() {
		t.Fatalf("%+v, %v", m, err)
	}
	if m, err := trust.Verify(append(slices.Clone(chain), root.cert.Raw), now); err != nil || m != id.Self() {
		t.Errorf("with the root: %+v, %v", m, err)
	}
	bad := slices.Clone(chain[0])
	bad[len(bad)-1] ^= 1
	for name, c := range map[string][][]byte{
		"nothing": nil, "without the signer": chain[:1], "the signer first": {chain[1], chain[0]}, "the signer alone": chain[1:],
		"the root": {root.cert.Raw}, "tampered": {bad, chain[1]}, "garbage": {[]byte("hello")}, "garbage above": {chain[0], []byte("hello")},
		"too long": {chain[0], chain[1], chain[1], chain[1]}, "another root's": {other.cert.Raw},
		"another collective's": load(t, enrol(t, other, Terms{Name: "alice"})).Chain(),
	} {
		if m, err := trust.Verify(c, now); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
	// Mistakes that an authority may have signed.
	for name, change := range map[string]func(*x509.Certificate){
		"of no collective":   func(c *x509.Certificate) { c.Subject.Organization = nil },
		"of another one":     func(c *x509.Certificate) { c.Subject.Organization = []string{"other"} },
		"of two":             func(c *x509.Certificate) { c.Subject.Organization = []string{"test collective", "other"} },
		"an authority":       func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true },
		"for two names":      func(c *x509.Certificate) { c.DNSNames = []string{"eve", "alice"} },
		"for another name":   func(c *x509.Certificate) { c.DNSNames = []string{"alice"} },
		"a bad subnet":       func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "dcol", Opaque: "subnet:10.0.0.1/8"}} },
		"unchanged and good": func(*x509.Certificate) {},
	} {
		template := &x509.Certificate{
			SerialNumber: newSerial(), Subject: pkix.Name{CommonName: "eve", Organization: []string{"test collective"}}, DNSNames: []string{"eve"},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		}
		change(template)
		cert, err := createCertificate(template, root.cert, id.PublicKey(), root.key)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := trust.Verify([][]byte{cert.Raw}, now); (err == nil) != (name == "unchanged and good") {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	day := 24 * time.Hour
	for _, wrong := range []struct {
		now time.Time
		is  error
		off time.Duration
	}{
		{now.Add(-day), ErrNotYetValid, -day},
		{now.Add(MemberValidity + day), ErrExpired, day},
	} {
		_, err := trust.Verify(chain, wrong.now)
		clock, ok := errors.AsType[*ClockError](err)
		if !ok || !errors.Is(err, wrong.is) || (clock.Off()-wrong.off).Abs() > time.Hour || clock.Subject != "alice" {
			t.Errorf("at %v: %v", wrong.now, err)
			continue
		}
		for _, at := range []time.Time{clock.Now, map[bool]time.Time{true: clock.NotBefore, false: clock.NotAfter}[clock.Off() < 0]} {
			if !strings.Contains(err.Error(), stamp(at)) {
				t.Errorf("%q does not name %s", err, stamp(at))
			}
		}
	}
}
