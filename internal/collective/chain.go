package collective

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// PublicKey is an ed25519 public key as a value.
type PublicKey [ed25519.PublicKeySize]byte

func (k PublicKey) String() string { return hex.EncodeToString(k[:]) }

// MarshalText implements encoding.TextMarshaler.
func (k PublicKey) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, k[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *PublicKey) UnmarshalText(text []byte) error {
	if n, err := hex.Decode(k[:], text[:min(len(text), 2*len(k))]); err != nil || n != len(k) || len(text) != 2*len(k) {
		return fmt.Errorf("%.80q is not a key: want %d hexadecimal digits", text, 2*len(k))
	}
	return nil
}

// Member describes a member, as stated in its certificate.
type Member struct {
	Name       string
	Collective string
	Serial     string
	Key        PublicKey
	Subnet     netip.Prefix // its own in the collective's network; zero: none
	NotBefore  time.Time
	NotAfter   time.Time
	Issuer     Issuer
}

// Issuer identifies the authority that signed a certificate. The zero Issuer is unknown.
type Issuer struct {
	Key    PublicKey
	Serial string    // of the signer's certificate; empty if a root signed
	Root   PublicKey // the same as Key if a root signed
}

// maxChain is the longest chain: a member's certificate, a signer's and a root's.
const maxChain = 3

// memberOf returns the member of a verified chain, which has the member's certificate first and a root last.
func memberOf(chain []*x509.Certificate) (Member, error) {
	if len(chain) < 2 || len(chain) > maxChain {
		return Member{}, fmt.Errorf("not a member's certificate: its chain has %d", len(chain))
	}
	leaf, root := chain[0], chain[len(chain)-1]
	name := leaf.Subject.CommonName
	if err := CheckName(name); err != nil {
		return Member{}, fmt.Errorf("not a member's certificate: %w", err)
	}
	if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != name {
		return Member{}, fmt.Errorf("not a member's certificate: it is for %q and for %q", name, leaf.DNSNames)
	}
	if leaf.IsCA {
		return Member{}, errors.New("not a member's certificate: it is an authority's")
	}
	collective := root.Subject.CommonName
	if o := leaf.Subject.Organization; len(o) != 1 || o[0] != collective {
		return Member{}, fmt.Errorf("not a certificate of a member of %q: it is for %q", collective, o)
	}
	subnet, err := subnetOf(leaf.URIs)
	if err != nil {
		return Member{}, fmt.Errorf("not a member's certificate: %w", err)
	}
	m := Member{
		Name: name, Collective: collective, Serial: serialText(leaf.SerialNumber), Subnet: subnet,
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
	}
	var ok [3]bool
	m.Key, ok[0] = keyOf(leaf)
	m.Issuer.Key, ok[1] = keyOf(chain[1])
	m.Issuer.Root, ok[2] = keyOf(root)
	if ok != [3]bool{true, true, true} {
		return Member{}, errors.New("not a member's certificate: a key in its chain is not ed25519")
	}
	if len(chain) == maxChain {
		m.Issuer.Serial = serialText(chain[1].SerialNumber)
	}
	return m, nil
}

func keyOf(cert *x509.Certificate) (PublicKey, bool) {
	key, ok := cert.PublicKey.(ed25519.PublicKey)
	if !ok {
		return PublicKey{}, false
	}
	return PublicKey(key), true
}

// A member's certificate contains its subnet as the URI dcol:subnet:10.1.2.0/26, so that nobody can claim
// another's. Other URIs are ignored, for later versions.
const (
	subnetScheme = "dcol"
	subnetPrefix = "subnet:"
)

func subnetURI(p netip.Prefix) *url.URL {
	return &url.URL{Scheme: subnetScheme, Opaque: subnetPrefix + p.String()}
}

func subnetOf(uris []*url.URL) (netip.Prefix, error) {
	var found netip.Prefix
	for _, u := range uris {
		text, ok := strings.CutPrefix(u.Opaque, subnetPrefix)
		if u.Scheme != subnetScheme || !ok {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("the subnet %q: %w", text, err)
		}
		if err := checkSubnet(p); err != nil {
			return netip.Prefix{}, err
		}
		if found.IsValid() {
			return netip.Prefix{}, fmt.Errorf("two subnets, %v and %v", found, p)
		}
		found = p
	}
	return found, nil
}

func checkSubnet(p netip.Prefix) error {
	if !p.IsValid() || p.Masked() != p || p.Bits() == 0 || p.Addr().Is4In6() {
		return fmt.Errorf("a subnet must be a prefix without bits beyond its length, such as 10.1.2.0/26, not %v", p)
	}
	return nil
}

// linkUp returns the chain from a leaf to one of the roots. It checks signatures only. The time is checked
// separately, so that the error can explain it.
func linkUp(leaf *x509.Certificate, between, roots []*x509.Certificate) []*x509.Certificate {
	for _, r := range roots {
		if signed(leaf, r) {
			return []*x509.Certificate{leaf, r}
		}
	}
	for _, s := range between {
		if !signed(leaf, s) {
			continue
		}
		for _, r := range roots {
			if signed(s, r) {
				return []*x509.Certificate{leaf, s, r}
			}
		}
	}
	return nil
}

func signed(child, parent *x509.Certificate) bool {
	return bytes.Equal(child.RawIssuer, parent.RawSubject) && child.CheckSignatureFrom(parent) == nil
}

// isRoot reports whether a certificate is a self-signed authority's.
func isRoot(cert *x509.Certificate) bool { return cert.IsCA && signed(cert, cert) }

// parseCertificates returns all certificates in a PEM file, and ignores other blocks.
func parseCertificates(data []byte, most int) ([]*x509.Certificate, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	var out []*x509.Certificate
	for _, block := range blocks {
		if block.Type != pemCertificate {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a damaged certificate: %w", err)
		}
		if out = append(out, cert); len(out) > most {
			return nil, fmt.Errorf("holds more than %d certificates", most)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("holds no PEM block " + pemCertificate)
	}
	return out, nil
}

func encodeCerts(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Raw})...)
	}
	return out
}
