package collective

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLoadFaults(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	alice := issue(t, ca, Request{Name: "alice"})
	tests := map[string]struct {
		spoil func(t *testing.T, f *Files)
		file  func(f Files) string // the file the error must name
		is    error
		words string
	}{
		"missing key":         {spoil: func(t *testing.T, f *Files) { os.Remove(f.Key) }, file: func(f Files) string { return f.Key }, is: os.ErrNotExist, words: "dcol ca issue"},
		"missing certificate": {spoil: func(t *testing.T, f *Files) { os.Remove(f.Certificate) }, file: func(f Files) string { return f.Certificate }, is: os.ErrNotExist, words: "dcol ca issue"},
		"missing ca":          {spoil: func(t *testing.T, f *Files) { os.Remove(f.CA) }, file: func(f Files) string { return f.CA }, is: os.ErrNotExist, words: "authority"},
		"missing crl":         {spoil: func(t *testing.T, f *Files) { os.Remove(f.CRL) }, file: func(f Files) string { return f.CRL }, is: os.ErrNotExist, words: "ca.crl"},
		"open key":            {spoil: func(t *testing.T, f *Files) { os.Chmod(f.Key, 0o644) }, file: func(f Files) string { return f.Key }, words: "chmod 600"},
		"key of another": {spoil: func(t *testing.T, f *Files) {
			copyFile(t, issue(t, ca, Request{Name: "bob"}).KeyFile, f.Key)
		}, file: func(f Files) string { return f.Key }, is: ErrKeyMismatch},
		"another authority": {spoil: func(t *testing.T, f *Files) { copyFile(t, other.CertFile(), f.CA) }, file: func(f Files) string { return f.Certificate }, is: ErrOtherCA},
		"member as authority": {spoil: func(t *testing.T, f *Files) { copyFile(t, f.Certificate, f.CA) }, file: func(f Files) string { return f.CA },
			words: "not an authority's"},
		"authority as member": {spoil: func(t *testing.T, f *Files) {
			copyFile(t, ca.CertFile(), f.Certificate)
			copyFile(t, filepath.Join(ca.dir, caKeyFile), f.Key)
		}, file: func(f Files) string { return f.Certificate }, words: "not a member's certificate"},
		"expired": {spoil: func(t *testing.T, f *Files) {
			i := issue(t, ca, Request{Name: "late", NotBefore: time.Now().Add(-2 * time.Hour)})
			copyFile(t, i.CertFile, f.Certificate)
			copyFile(t, i.KeyFile, f.Key)
		}, file: func(f Files) string { return f.Certificate }, is: ErrExpired, words: "dcol ca issue --reissue late"},
		"not yet valid": {spoil: func(t *testing.T, f *Files) {
			i := issue(t, ca, Request{Name: "early", NotBefore: time.Now().Add(2 * time.Hour)})
			copyFile(t, i.CertFile, f.Certificate)
			copyFile(t, i.KeyFile, f.Key)
		}, file: func(f Files) string { return f.Certificate }, is: ErrNotYetValid, words: "clock"},
		"no pem": {spoil: func(t *testing.T, f *Files) { os.WriteFile(f.Certificate, []byte("hello"), 0o644) }, file: func(f Files) string { return f.Certificate },
			words: "PEM"},
		"damaged certificate": {spoil: func(t *testing.T, f *Files) {
			os.WriteFile(f.Certificate, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: []byte("hello")}), 0o644)
		}, file: func(f Files) string { return f.Certificate }, words: "damaged"},
		"damaged key": {spoil: func(t *testing.T, f *Files) {
			os.WriteFile(f.Key, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: []byte("hello")}), 0o600)
		}, file: func(f Files) string { return f.Key }, words: "damaged"},
		"other kind of key": {spoil: func(t *testing.T, f *Files) {
			k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			der, _ := x509.MarshalPKCS8PrivateKey(k)
			os.WriteFile(f.Key, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), 0o600)
		}, file: func(f Files) string { return f.Key }, words: "ed25519"},
		"endless file": {spoil: func(t *testing.T, f *Files) { f.Certificate = "/dev/zero" }, file: func(f Files) string { return f.Certificate }, words: "larger"},
		"directory":    {spoil: func(t *testing.T, f *Files) { f.Certificate = t.TempDir() }, file: func(f Files) string { return f.Certificate }},
		"crl of another authority": {spoil: func(t *testing.T, f *Files) { copyFile(t, other.CRLFile(), f.CRL) }, file: func(f Files) string { return f.CRL },
			words: "no revocation list that is signed by"},
		"damaged crl": {spoil: func(t *testing.T, f *Files) {
			os.WriteFile(f.CRL, pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: []byte("hello")}), 0o644)
		}, file: func(f Files) string { return f.CRL }, words: "damaged"},
		"revoked": {spoil: func(t *testing.T, f *Files) {
			i := issue(t, ca, Request{Name: "mallory"})
			if _, err := ca.Revoke("mallory", PrivilegeWithdrawn); err != nil {
				t.Fatal(err)
			}
			copyFile(t, i.CertFile, f.Certificate)
			copyFile(t, i.KeyFile, f.Key)
			copyFile(t, ca.CRLFile(), f.CRL)
		}, file: func(f Files) string { return f.Certificate }, words: "was revoked"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := install(t, ca, alice)
			test.spoil(t, &f)
			_, err := Load(f, quiet())
			var fault *Error
			if !errors.As(err, &fault) {
				t.Fatalf("got %v", err)
			}
			if fault.File != test.file(f) {
				t.Errorf("names %s: %v", fault.File, err)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("is not %q: %v", test.is, err)
			}
			if !strings.Contains(err.Error(), test.words) || fault.Fix == "" {
				t.Errorf("says %q, want %q and a fix", err, test.words)
			}
		})
	}
}

func TestRefreshTakesNewCertificate(t *testing.T) {
	ca := newCA(t)
	f := install(t, ca, issue(t, ca, Request{Name: "alice"}))
	id := load(t, f)
	before := id.Derive("x")
	renewed := issue(t, ca, Request{Name: "alice", Reissue: true})

	copyFile(t, renewed.KeyFile, f.Key)
	id.Refresh()
	if id.Self().Serial == renewed.Serial || id.Problem() == nil || id.Usable() != nil {
		t.Fatalf("half a replacement: serial %s, problem %v, usable %v", id.Self().Serial, id.Problem(), id.Usable())
	}
	copyFile(t, renewed.CertFile, f.Certificate)
	id.Refresh()
	if id.Self().Serial != renewed.Serial || id.Problem() != nil {
		t.Fatalf("after the replacement: serial %s, problem %v", id.Self().Serial, id.Problem())
	}
	if id.Derive("x") == before {
		t.Fatal("another key derives the same secret")
	}
	if load(t, f).Derive("x") != id.Derive("x") {
		t.Fatal("a restart derives another secret")
	}
	if id.Derive("x") == id.Derive("y") {
		t.Fatal("two purposes share a secret")
	}
}

func TestRefreshKeepsTheLastGoodList(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	f := install(t, ca, issue(t, ca, Request{Name: "alice"}))
	older := filepath.Join(t.TempDir(), "older.crl")
	copyFile(t, ca.CRLFile(), older)
	id := load(t, f)
	bob := load(t, install(t, ca, issue(t, ca, Request{Name: "bob"}))).Self()
	if err := id.Check(bob); err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Revoke("bob", PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	copyFile(t, ca.CRLFile(), f.CRL)
	id.Refresh()
	if id.Problem() != nil {
		t.Fatal(id.Problem())
	}
	for name, bad := range map[string]string{"another authority's": other.CRLFile(), "an older": older, "a certificate as": ca.CertFile()} {
		copyFile(t, bad, f.CRL)
		id.Refresh()
		var revoked *RevokedError
		if err := id.Check(bob); !errors.As(err, &revoked) || revoked.Name != "bob" {
			t.Errorf("%s list lets bob back in: %v", name, err)
		}
		if id.Problem() == nil || !strings.Contains(id.Problem().Error(), f.CRL) {
			t.Errorf("%s list: problem %v", name, id.Problem())
		}
	}
	os.Remove(f.CRL)
	id.Refresh()
	if id.Check(bob) == nil || id.Problem() == nil {
		t.Error("a removed list lets bob back in")
	}
	copyFile(t, ca.CRLFile(), f.CRL)
	id.Refresh()
	if id.Problem() != nil {
		t.Errorf("after the fix: %v", id.Problem())
	}
}

func TestRefreshMovesToAnotherAuthority(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	f := install(t, ca, issue(t, ca, Request{Name: "alice"}))
	id := load(t, f)
	moved := install(t, other, issue(t, other, Request{Name: "alice"}))
	copyFile(t, moved.Certificate, f.Certificate)
	copyFile(t, moved.Key, f.Key)
	copyFile(t, moved.CA, f.CA)
	id.Refresh() // the list is still the old authority's: nothing may be accepted
	if _, _, serverErr, _ := handshake(t, id, load(t, moved), "alice"); serverErr == nil {
		t.Fatal("took an authority without its revocation list")
	}
	copyFile(t, moved.CRL, f.CRL)
	id.Refresh()
	if id.Problem() != nil {
		t.Fatal(id.Problem())
	}
	if _, _, serverErr, clientErr := handshake(t, id, load(t, moved), "alice"); serverErr != nil || clientErr != nil {
		t.Fatal(serverErr, clientErr)
	}
}
