package session

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/collective"
)

// enrolled is a member that made its own key and has a certificate of an authority.
func enrolled(t *testing.T, ca *collective.CA, name string) *collective.Identity {
	t.Helper()
	dir := t.TempDir()
	f := collective.Files{
		Certificate: filepath.Join(dir, "me.crt"), Key: filepath.Join(dir, "me.key"),
		CA: filepath.Join(dir, "ca.crt"), CRL: filepath.Join(dir, "ca.crl"),
	}
	key, err := collective.NewKey(f.Key)
	if err != nil {
		t.Fatal(err)
	}
	request, err := collective.NewRequest(key, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Certificate, signed(t, ca, request, name), 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, ca.CertFile(), f.CA)
	put(t, ca.CRLFile(), f.CRL)
	return load(t, f)
}

func signed(t *testing.T, ca *collective.CA, request []byte, name string) []byte {
	t.Helper()
	r, err := collective.ParseRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ca.Sign(r, collective.Terms{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return out.Chain
}

// takeTrust gives a member the trust files of an authority.
func takeTrust(t *testing.T, id *collective.Identity, from *collective.CA) {
	t.Helper()
	trust, err := from.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := id.TakeTrust(trust.Roots(), trust.Lists()); err != nil {
		t.Fatal(err)
	}
}

func signerOf(t *testing.T, root *collective.CA) *collective.CA {
	t.Helper()
	s, err := root.NewSigner(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A session continues while both sides learn of a new root and renew their certificates under it, one after the other.
// In the meantime, members of both roots have sessions. Members that do not renew lose theirs with the old root.
func TestRotationDuring(t *testing.T) {
	t.Parallel()
	old := newAuthority(t).ca
	oldSigner := signerOf(t, old)
	bob, alice, late := enrolled(t, oldSigner, "bob"), enrolled(t, oldSigner, "alice"), enrolled(t, oldSigner, "late")
	w := startServer(t, served{Identity: bob})
	a, l := startClient(t, alice, "bob", w.at), startClient(t, late, "bob", w.at)
	a.awaitUp()
	l.awaitUp()

	next, err := old.Successor(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	newSigner := signerOf(t, next)
	for _, id := range []*collective.Identity{bob, alice, late} {
		takeTrust(t, id, newSigner)
	}
	renew := func(id *collective.Identity) {
		t.Helper()
		request, err := id.RenewalRequest()
		if err != nil {
			t.Fatal(err)
		}
		if err := id.TakeCertificate(signed(t, newSigner, request, id.Name())); err != nil {
			t.Fatal(err)
		}
	}
	renew(alice)
	c := startClient(t, enrolled(t, newSigner, "carol"), "bob", w.at) // bob's certificate is still the old signer's
	c.awaitUp()
	renew(bob)
	d := startClient(t, enrolled(t, newSigner, "dave"), "bob", w.at)
	d.awaitUp()
	for _, m := range []*member{a, l, c} {
		m.mustMap("203.0.113.5:443")
		if s := m.State(); s.Sessions != 1 {
			t.Errorf("%d sessions", s.Sessions)
		}
	}

	if err := next.DropOthers(); err != nil {
		t.Fatal(err)
	}
	takeTrust(t, bob, next)
	if p := l.awaitProblem(RefusedUs); !strings.Contains(p.Error(), "does not accept our certificate") {
		t.Error(p)
	}
	c.mustMap("203.0.113.6:443")
	d.mustMap("203.0.113.6:443")
}

// If a signer is revoked, sessions of members that it signed end at once.
func TestSignerRevokedDuring(t *testing.T) {
	t.Parallel()
	root := newAuthority(t).ca
	bad := signerOf(t, root)
	bob := enrolled(t, signerOf(t, root), "bob")
	w := startServer(t, served{Identity: bob})
	m := startClient(t, enrolled(t, bad, "mallory"), "bob", w.at)
	other := startClient(t, enrolled(t, signerOf(t, root), "alice"), "bob", w.at)
	m.awaitUp()
	other.awaitUp()
	if _, err := root.Revoke(bad.Subject(), collective.KeyCompromise); err != nil {
		t.Fatal(err)
	}
	takeTrust(t, bob, root)
	m.awaitProblem(Revoked)
	other.mustMap("203.0.113.5:443")
}
