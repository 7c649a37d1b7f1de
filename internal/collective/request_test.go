package collective

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestEnrolAndRenew(t *testing.T) {
	s := newSigner(t, newCA(t))
	subnet := netip.MustParsePrefix("10.3.4.64/26")
	f := enrol(t, s, Terms{Name: "alice", Subnet: subnet, Validity: time.Hour})
	id := load(t, f)
	first := id.Self()
	if first.Subnet != subnet || first.Name != "alice" {
		t.Fatalf("%+v", first)
	}
	request, err := id.RenewalRequest()
	if err != nil {
		t.Fatal(err)
	}
	renewed := sign(t, s, request, Terms{Name: "alice", Subnet: subnet})
	if renewed.Member.Key != first.Key || renewed.Member.Serial == first.Serial {
		t.Fatalf("%+v after %+v", renewed.Member, first)
	}
	secret := id.Derive("x")
	if err := id.TakeCertificate(renewed.Chain); err != nil {
		t.Fatal(err)
	}
	if id.Self() != renewed.Member || load(t, f).Self() != renewed.Member {
		t.Fatalf("now %+v, want %+v", id.Self(), renewed.Member)
	}
	if id.Derive("x") != secret {
		t.Error("a renewal changed derived secrets")
	}
}

func TestTakeCertificateFaults(t *testing.T) {
	root, other := newCA(t), newCA(t)
	s := newSigner(t, root)
	f := enrol(t, s, Terms{Name: "alice"})
	id := load(t, f)
	before := readAll(t, f.Certificate)
	key, _ := ReadKey(f.Key)
	request := func(name string) []byte {
		r, err := NewRequest(key, name)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	good := sign(t, s, request("alice"), Terms{Name: "alice"}).Chain
	block, _ := pem.Decode(good)
	block.Bytes[len(block.Bytes)-1] ^= 1
	tampered := append(pem.EncodeToMemory(block), encodeCerts(s.cert)...)
	leafOnly := good[:bytes.Index(good, []byte("-----END"))+len("-----END CERTIFICATE-----\n")]
	revoked := sign(t, s, request("alice"), Terms{Name: "alice", Validity: time.Minute})
	if _, err := s.Revoke(revoked.Member.Serial, Superseded); err != nil {
		t.Fatal(err)
	}
	if _, err := id.TakeTrust(nil, readAll(t, s.CRLFile())); err != nil {
		t.Fatal(err)
	}
	for name, chain := range map[string][]byte{
		"another's key":        readAll(t, enrol(t, s, Terms{Name: "bob"}).Certificate),
		"another name":         sign(t, s, request("bob"), Terms{Name: "bob"}).Chain,
		"another collective's": sign(t, other, request("alice"), Terms{Name: "alice"}).Chain,
		"tampered":             tampered,
		"without the signer's": leafOnly,
		"revoked":              revoked.Chain,
		"cut off":              good[:len(good)/3],
		"nothing":              nil,
		"the signer's own":     s.Certificate(),
	} {
		if err := id.TakeCertificate(chain); err == nil {
			t.Errorf("took one %s", name)
		}
		if !bytes.Equal(readAll(t, f.Certificate), before) {
			t.Fatalf("%s: the file has changed", name)
		}
	}
	if err := id.TakeCertificate(good); err != nil {
		t.Fatal(err)
	}
}

func TestParseRequestFaults(t *testing.T) {
	key, err := NewKey(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	good, err := NewRequest(key, "alice")
	if err != nil {
		t.Fatal(err)
	}
	encode := func(template x509.CertificateRequest, key any) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: der})
	}
	block, _ := pem.Decode(good)
	block.Bytes[len(block.Bytes)-3] ^= 4
	ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	for words, data := range map[string][]byte{
		"may not have the key": pem.EncodeToMemory(block),
		"ECDSA":                encode(x509.CertificateRequest{Subject: pkix.Name{CommonName: "alice"}}, ec),
		"'/'":                  encode(x509.CertificateRequest{Subject: pkix.Name{CommonName: "a/b"}}, key),
		"own":                  encode(x509.CertificateRequest{Subject: pkix.Name{CommonName: "ca"}}, key),
		"0 char":               encode(x509.CertificateRequest{}, key),
		"no PEM":               []byte("hello"),
		"at most":              bytes.Repeat([]byte("x"), maxRequest+1),
		"request":              pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: []byte("hello")}),
	} {
		if _, err := ParseRequest(data); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("want %q: %v", words, err)
		}
	}
	if _, err := NewRequest(key, "Alice"); err == nil {
		t.Error("asked for a name that is none")
	}
}

// The authority decides about everything that a request asks for besides a name.
func TestSignIgnoresWhatWasNotGranted(t *testing.T) {
	ca := newCA(t)
	key, err := NewKey(filepath.Join(t.TempDir(), "key"))
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "alice", Organization: []string{"another"}},
		DNSNames: []string{"bob"},
		URIs:     []*url.URL{subnetURI(netip.MustParsePrefix("10.0.0.0/8"))},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRequest(pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	out, err := ca.Sign(r, Terms{Name: "alice"})
	if err != nil || out.Member.Subnet.IsValid() || out.Member.Collective != ca.Name() {
		t.Fatalf("%+v, %v", out.Member, err)
	}
	for _, terms := range []Terms{
		{Name: "bob"},
		{Name: "alice", Validity: -time.Hour},
		{Name: "alice", Subnet: netip.MustParsePrefix("10.0.0.1/26")},
		{Name: "alice", Subnet: netip.MustParsePrefix("0.0.0.0/0")},
	} {
		if _, err := ca.Sign(r, terms); err == nil {
			t.Errorf("signed %+v", terms)
		}
	}
	if long, err := ca.Sign(r, Terms{Name: "alice", Validity: 100 * 365 * 24 * time.Hour}); err != nil || !long.Member.NotAfter.Equal(ca.NotAfter()) {
		t.Errorf("until %v, the authority until %v: %v", long.Member.NotAfter, ca.NotAfter(), err)
	}
}

func TestNewKeyKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "me.key")
	key, err := NewKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if _, err := NewKey(path); !errors.Is(err, ErrExists) {
		t.Errorf("second key: %v", err)
	}
	again, err := ReadKey(path)
	if err != nil || !again.Equal(key) {
		t.Errorf("read another key: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSubnetOf(t *testing.T) {
	uri := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	for text, want := range map[string]string{
		"dcol:subnet:10.1.2.0/26": "10.1.2.0/26", "dcol:subnet:fd00:1::/64": "fd00:1::/64",
		"https://example.org/": "", "dcol:later:x": "",
	} {
		got, err := subnetOf([]*url.URL{uri(text)})
		if err != nil || got.IsValid() != (want != "") || got.IsValid() && got.String() != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, bad := range [][]*url.URL{
		{uri("dcol:subnet:")}, {uri("dcol:subnet:10.1.2.3/26")}, {uri("dcol:subnet:0.0.0.0/0")}, {uri("dcol:subnet:::ffff:10.0.0.0/104")},
		{uri("dcol:subnet:10.1.2.0/26"), uri("dcol:subnet:10.1.3.0/26")},
	} {
		if got, err := subnetOf(bad); err == nil {
			t.Errorf("%v: %v", bad, got)
		}
	}
}
