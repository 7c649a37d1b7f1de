package collective

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// MemberValidity is the validity of certificates that members renew themselves. It is long enough for a
// coordinator to be down for days, and short enough to keep revocation lists short.
const MemberValidity = 7 * 24 * time.Hour

// Terms are the terms on which the authority signs a SigningRequest.
type Terms struct {
	Name     string        // must be the requested one
	Subnet   netip.Prefix  // of its own; zero: none
	Validity time.Duration // zero: MemberValidity; never beyond the authority's own end
}

// Signed is a certificate for a private key that the authority does not have.
type Signed struct {
	Member Member
	Chain  []byte // PEM: the certificate, and the signer's if a signer signed it
}

// Sign signs a certificate for the sender of a request, valid for a client and a waypoint. The certificate is
// recorded before Sign returns it.
func (ca *CA) Sign(r *SigningRequest, t Terms) (Signed, error) {
	if r.name != t.Name {
		return Signed{}, fmt.Errorf("sign a certificate for %s: the request is for %q", t.Name, r.name)
	}
	unlock, err := durable.Lock(ca.dir)
	if err != nil {
		return Signed{}, err
	}
	defer unlock()
	now := time.Now()
	if t.Validity == 0 {
		t.Validity = MemberValidity
	}
	end := now.Add(t.Validity)
	if end.After(ca.cert.NotAfter) {
		end = ca.cert.NotAfter
	}
	return ca.signMember(r.key, t.Name, t.Subnet, now.Add(-backdate), end)
}

// Request describes a certificate for a member whose key is made here.
type Request struct {
	Name      string
	Subnet    netip.Prefix // of its own; zero: none
	NotBefore time.Time    // zero: now, less five minutes for clocks that are behind
	Validity  time.Duration
	// Reissue replaces existing files NAME.crt and NAME.key. The old certificate stays valid until it expires
	// or is revoked.
	Reissue bool
}

// Issued names the two files of a member's new identity, for copying to its host.
type Issued struct {
	Name     string
	Serial   string
	CertFile string
	KeyFile  string
	NotAfter time.Time
}

// Issue creates a key and a certificate for a member, valid for a client and a waypoint.
func (ca *CA) Issue(r Request) (Issued, error) {
	if err := CheckName(r.Name); err != nil {
		return Issued{}, fmt.Errorf("issue a certificate: %w", err)
	}
	if r.Validity <= 0 {
		return Issued{}, fmt.Errorf("issue a certificate for %s: the validity must be a positive time such as 2160h, not %v", r.Name, r.Validity)
	}
	unlock, err := durable.Lock(ca.dir)
	if err != nil {
		return Issued{}, err
	}
	defer unlock()

	out := Issued{
		Name:     r.Name,
		CertFile: filepath.Join(ca.dir, r.Name+".crt"),
		KeyFile:  filepath.Join(ca.dir, r.Name+".key"),
	}
	if !r.Reissue {
		for _, path := range []string{out.CertFile, out.KeyFile} {
			if _, err := os.Lstat(path); err == nil {
				return Issued{}, &Error{File: path, Problem: "a certificate for " + r.Name, Err: ErrExists, Fix: "choose another name, or replace it with --reissue"}
			}
		}
	}

	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Issued{}, fmt.Errorf("make the key of %s: %w", r.Name, err)
	}
	notBefore := r.NotBefore
	if notBefore.IsZero() {
		notBefore = time.Now().Add(-backdate)
	}
	out.NotAfter = notBefore.Add(r.Validity)
	if r.NotBefore.IsZero() {
		out.NotAfter = out.NotAfter.Add(backdate)
	}
	if out.NotAfter.After(ca.cert.NotAfter) {
		return Issued{}, fmt.Errorf("issue a certificate for %s until %s: the authority itself expires on %s: give a shorter validity",
			r.Name, out.NotAfter.Format(time.DateOnly), ca.cert.NotAfter.Format(time.DateOnly))
	}
	signed, err := ca.signMember(PublicKey(pub), r.Name, r.Subnet, notBefore, out.NotAfter)
	if err != nil {
		return Issued{}, err
	}
	out.Serial = signed.Member.Serial
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Issued{}, err
	}
	if err := durable.Replace(out.KeyFile, keyPEM, 0o600); err != nil {
		return Issued{}, err
	}
	if err := durable.Replace(out.CertFile, signed.Chain, 0o644); err != nil {
		return Issued{}, err
	}
	return out, nil
}

// IssuedCertificate describes a certificate that an authority has signed.
type IssuedCertificate struct {
	Serial    string
	Name      string // of a member, or of a signer
	Key       PublicKey
	Subnet    netip.Prefix
	NotBefore time.Time
	NotAfter  time.Time
	Revoked   bool
	Why       Reason // why it was revoked
}

// Issued returns the certificates that this authority has signed, in the order in which they expire. It leaves out
// certificates that expired before the day of since.
func (ca *CA) Issued(since time.Time) (out []IssuedCertificate, err error) {
	err = ca.issued.each(func(day time.Time) bool { return !ended(day, since) }, func(one IssuedCertificate) { out = append(out, one) })
	if err != nil {
		return nil, err
	}
	return out, ca.markRevoked(out)
}

// Reading is a position in the records of what authorities have signed. The zero value is the beginning.
type Reading struct {
	of   PublicKey // the authority's
	days map[time.Time]int64
}

// IssuedSince is like Issued, but returns only certificates that were signed after position r, in this process
// or another, and advances r. If r belongs to another authority, it returns all. It is cheap if there is
// nothing new. Damaged records cause an error once; the others are returned.
func (ca *CA) IssuedSince(r *Reading, since time.Time) (out []IssuedCertificate, err error) {
	if of := ca.Key(); r.days == nil || r.of != of {
		*r = Reading{of, map[time.Time]int64{}}
	}
	err = ca.issued.added(r.days, func(day time.Time) bool { return !ended(day, since) }, func(one IssuedCertificate) { out = append(out, one) })
	return out, errors.Join(err, ca.markRevoked(out))
}

// markRevoked sets the time and reason of the revoked ones.
func (ca *CA) markRevoked(all []IssuedCertificate) error {
	if len(all) == 0 {
		return nil
	}
	t, err := ca.Trust()
	if err != nil {
		return err
	}
	why := map[string]Reason{}
	if own := t.lists[ca.Key()]; own != nil {
		for _, e := range own.list.RevokedCertificateEntries {
			why[serialText(e.SerialNumber)] = Reason(e.ReasonCode)
		}
	}
	for i := range all {
		all[i].Why, all[i].Revoked = why[all[i].Serial]
	}
	return nil
}

// signMember signs a certificate and records it. The caller holds the lock.
func (ca *CA) signMember(pub PublicKey, name string, subnet netip.Prefix, notBefore, notAfter time.Time) (Signed, error) {
	if err := CheckTime(ca.cert, time.Now()); err != nil {
		return Signed{}, fmt.Errorf("sign a certificate for %s: the authority: %w", name, err)
	}
	if !notAfter.After(notBefore) {
		return Signed{}, fmt.Errorf("sign a certificate for %s: it would expire on %[3]s, before it begins on %[2]s", name, stamp(notBefore), stamp(notAfter))
	}
	var uris []*url.URL
	if subnet.IsValid() {
		if err := checkSubnet(subnet); err != nil {
			return Signed{}, fmt.Errorf("sign a certificate for %s: %w", name, err)
		}
		uris = append(uris, subnetURI(subnet))
	}
	cert, err := createCertificate(&x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: name, Organization: []string{ca.Name()}},
		DNSNames:              []string{name},
		URIs:                  uris,
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, ca.cert, pub[:], ca.key)
	if err != nil {
		return Signed{}, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	member, err := memberOf(linkUp(cert, []*x509.Certificate{ca.cert}, []*x509.Certificate{ca.root}))
	if err != nil {
		return Signed{}, fmt.Errorf("sign the certificate of %s: members would refuse it: %w", name, err)
	}
	if err := ca.issued.add(IssuedCertificate{
		Serial: member.Serial, Name: name, NotBefore: notBefore, NotAfter: notAfter, Key: pub, Subnet: subnet,
	}); err != nil {
		return Signed{}, err
	}
	chain := encodeCerts(cert)
	if !ca.isRoot() {
		chain = append(chain, encodeCerts(ca.cert)...)
	}
	return Signed{Member: member, Chain: chain}, nil
}
