package openvpn

import (
	"os"
	"testing"

	"github.com/detour-collective/dcol/internal/collective"
)

// OpenVPN takes a collective's files as they are while its roots change: certificates with their signer's
// after them, ca.crt with two roots and what was stated of them, ca.crl with a list of each authority.
func TestSigners(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	signer := func(root *collective.CA) *collective.CA {
		s, err := root.NewSigner(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	oldSigner := signer(n.ca)
	next, err := n.ca.Successor(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	newSigner := signer(next)
	// What every member has is what all authorities have; the new signer's directory is the one where
	// it comes together.
	publish := func() {
		t.Helper()
		for _, ca := range []*collective.CA{n.ca, oldSigner, next} {
			lists, err := os.ReadFile(ca.CRLFile())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := newSigner.TakeTrust(nil, lists); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish()
	files := func(ca *collective.CA, name string) Files {
		f := issue(t, ca, name)
		f.CA, f.CRL = newSigner.CertFile(), newSigner.CRLFile()
		return f
	}
	sc := n.serverConfig()
	sc.Files = files(newSigner, "bob")
	s := n.serveWith(sc)
	admit(t, s, "alice", aliceIn)
	for who, ca := range map[string]*collective.CA{"old root": n.ca, "old signer": oldSigner, "new root": next, "new signer": newSigner} {
		c := n.clientConfig("alice", bobAtAlice)
		c.Files = files(ca, "alice")
		alice := n.start(n.alice, c)
		if state := alice.settled(); !state.Connected {
			t.Errorf("a member of the %s: %+v", who, state)
		}
		alice.Stop()
	}

	c := n.clientConfig("alice", bobAtAlice)
	c.Files = files(oldSigner, "alice")
	if _, err := n.ca.Revoke(oldSigner.Subject(), collective.KeyCompromise); err != nil {
		t.Fatal(err)
	}
	publish()
	alice := n.start(n.alice, c)
	if alice.settled().Connected {
		t.Error("a member of a signer that was revoked connected")
	}
}
