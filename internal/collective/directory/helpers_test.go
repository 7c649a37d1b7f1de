package directory

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

const testCollective = "test collective"

// authority is a root with a signer. It signs whatever a test wants, faster than the real one, which
// records everything; that one is there for revocation.
type authority struct {
	root, signer *collective.CA
	cert         *x509.Certificate // the signer's
	key          ed25519.PrivateKey
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	root, err := collective.InitCA(t.TempDir(), name)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := root.NewSigner(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(blockOf(t, string(signer.Certificate())))
	if err != nil {
		t.Fatal(err)
	}
	return &authority{root, signer, cert, keyIn(t, filepath.Join(filepath.Dir(signer.CertFile()), "signer.key"))}
}

func (a *authority) trust(t testing.TB) *collective.Trust {
	t.Helper()
	trust, err := a.signer.Trust()
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// member has a certificate and its key.
type member struct {
	name  string
	chain [][]byte
	key   ed25519.PrivateKey
}

// terms describe a certificate. Zero values mean: valid from a minute ago, for a week, without a subnet.
type terms struct {
	subnet   string
	from, to time.Time
	key      ed25519.PrivateKey
}

func (a *authority) issue(t testing.TB, name string, c terms) member {
	t.Helper()
	if c.from.IsZero() {
		c.from = time.Now().Add(-time.Minute)
	}
	if c.to.IsZero() {
		c.to = c.from.Add(7 * 24 * time.Hour)
	}
	if c.key == nil {
		_, c.key, _ = ed25519.GenerateKey(rand.Reader)
	}
	var serial [15]byte
	rand.Read(serial[:])
	template := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(append([]byte{1}, serial[:]...)),
		Subject:      pkix.Name{CommonName: name, Organization: []string{a.root.Name()}},
		DNSNames:     []string{name}, NotBefore: c.from, NotAfter: c.to,
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
	if c.subnet != "" {
		template.URIs = []*url.URL{{Scheme: "dcol", Opaque: "subnet:" + c.subnet}}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, c.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return member{name, [][]byte{der, a.cert.Raw}, c.key}
}

// record is a good record of a waypoint.
func (m member) record(sequence uint64, now time.Time) Record {
	r := Record{
		Collective: testCollective, Name: m.name, Sequence: sequence, Issued: now, Expires: now.Add(5 * 24 * time.Hour),
		Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")}, Port: 45672,
		Roles: []string{RoleClient, RoleWaypoint}, Kinds: []string{"in-band", "wireguard"}, Capacity: 20e6, Region: "eu", AS: 64500,
	}
	cert, _ := x509.ParseCertificate(m.chain[0])
	for _, u := range cert.URIs {
		r.Subnet = netip.MustParsePrefix(u.Opaque[len("subnet:"):])
	}
	return r
}

func (m member) sign(t testing.TB, r Record) *SignedRecord {
	t.Helper()
	s, err := Sign(r, m.chain, m.signature)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (m member) signature(message []byte) []byte { return ed25519.Sign(m.key, message) }

// signed is a good record.
func (m member) signed(t testing.TB, sequence uint64) *SignedRecord {
	t.Helper()
	return m.sign(t, m.record(sequence, time.Now()))
}

func blockOf(t testing.TB, text string) []byte {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("no PEM in %q", text)
	}
	return block.Bytes
}

func keyIn(t testing.TB, path string) ed25519.PrivateKey {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(blockOf(t, string(data)))
	if err != nil {
		t.Fatal(err)
	}
	return key.(ed25519.PrivateKey)
}

func wantReason(t testing.TB, err error, want Reason) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("refused with %v, want %s", err, want)
	}
	if _, ok := errors.AsType[*Refusal](err); !ok {
		t.Errorf("%v is no refusal", err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
