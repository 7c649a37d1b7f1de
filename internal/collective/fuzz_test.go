package collective

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"net/url"
	"testing"
	"time"
)

// FuzzRequest takes a stranger's bytes. An accepted request has proved its key and has a valid name.
func FuzzRequest(f *testing.F) {
	_, key, _ := fixedAuthority(f)
	good, err := NewRequest(key, "alice")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRequest(data)
		if err != nil {
			return
		}
		if err := CheckName(r.Name()); err != nil || r.Key() == (PublicKey{}) {
			t.Errorf("accepted %q: %v", r.Name(), err)
		}
	})
}

// FuzzFollow takes roots and lists as a lying coordinator would send them. Accepted ones are signed by way of the
// known roots, and parse to the same again.
func FuzzFollow(f *testing.F) {
	known, key, _ := fixedAuthority(f)
	root := known.roots.certs[0]
	set, err := known.roots.state(known.roots.certs, key, time.Unix(1_800_000_000, 0))
	if err != nil {
		f.Fatal(err)
	}
	list := known.lists[PublicKey(root.PublicKey.(ed25519.PublicKey))].list
	f.Add(root.Raw, set.statements[0].signed, root.Raw, list.Raw)
	f.Add(root.Raw, []byte(nil), []byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, cert, statement, signer, list []byte) {
		block := func(kind string, der []byte) []byte {
			if len(der) == 0 {
				return nil
			}
			return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		}
		roots := append(block(pemCertificate, cert), block(pemRoots, statement)...)
		lists := append(block(pemCertificate, signer), block(pemCRL, list)...)
		next, _, _, err := known.follow(roots, lists)
		if err != nil {
			return
		}
		if !sameCerts(next.roots.certs, known.roots.certs) {
			t.Fatal("took a root that nobody has stated")
		}
		again, err := parseRoots(next.Roots())
		if err != nil || !bytes.Equal(again.encode(), next.Roots()) {
			t.Fatalf("roots do not read the same again: %v", err)
		}
		listed, foreign, err := parseLists(next.Lists(), next.roots.certs)
		if err != nil || foreign > 0 || !listed.same(next.lists) {
			t.Fatalf("lists do not read the same again: %v", err)
		}
	})
}

// FuzzVerify takes chains as in foreign records. Only what the authority has signed is a member.
func FuzzVerify(f *testing.F) {
	trust, _, member := fixedAuthority(f)
	f.Add(member, []byte(nil))
	f.Add(member, trust.roots.certs[0].Raw)
	now := trust.roots.certs[0].NotBefore.Add(time.Hour)
	f.Fuzz(func(t *testing.T, leaf, above []byte) {
		m, err := trust.Verify([][]byte{leaf, above}[:1+min(len(above), 1)], now)
		if err == nil && (m.Name != "alice" || !bytes.Equal(leaf, member)) {
			t.Errorf("%+v is a member", m)
		}
	})
}

// FuzzRecord: lines of the ledger.
func FuzzRecord(f *testing.F) {
	f.Add(IssuedCertificate{Serial: "01", Name: "alice", NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1, 0)}.line())
	f.Add("01 signer:00 2026-07-25T00:00:00Z 2026-08-01T00:00:00Z " + PublicKey{1}.String() + " 10.0.0.0/26")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := parseLine(line)
		if err != nil {
			return
		}
		if again, err := parseLine(r.line()); err != nil || again.line() != r.line() {
			t.Errorf("%q reads as %q: %v", line, r.line(), err)
		}
	})
}

// fixedAuthority is the same in every run, so that testdata stays valid. It also returns a member's certificate.
func fixedAuthority(tb testing.TB) (*Trust, ed25519.PrivateKey, []byte) {
	tb.Helper()
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	pub := key.Public().(ed25519.PublicKey)
	begin := time.Unix(1_800_000_000, 0)
	template := authorityTemplate(begin, begin.Add(rootValidity))
	template.SerialNumber = big.NewInt(1)
	template.Subject = pkix.Name{CommonName: "fuzz"}
	template.MaxPathLen = 1
	root, err := createCertificate(template, template, pub, key)
	if err != nil {
		tb.Fatal(err)
	}
	leaf, err := createCertificate(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "alice", Organization: []string{"fuzz"}}, DNSNames: []string{"alice"},
		NotBefore: begin, NotAfter: begin.Add(MemberValidity), URIs: []*url.URL{subnetURI(netip.MustParsePrefix("10.1.2.0/26"))},
	}, root, pub, key)
	if err != nil {
		tb.Fatal(err)
	}
	der, err := x509.CreateRevocationList(nil, &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: begin, NextUpdate: begin.Add(rootValidity)}, root, key)
	if err != nil {
		tb.Fatal(err)
	}
	lists, _, err := parseLists(pem.EncodeToMemory(&pem.Block{Type: pemCRL, Bytes: der}), []*x509.Certificate{root})
	if err != nil {
		tb.Fatal(err)
	}
	return newTrust(&rootSet{certs: []*x509.Certificate{root}}, lists), key, leaf.Raw
}
