package collective

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// A signer is an authority below a root, valid for a year (an intermediate, RFC 5280). A coordinator needs only the
// signer's directory, so the root's can be kept offline.

// signerPrefix distinguishes signers' names from members' names, which have no colon.
const signerPrefix = "signer:"

// NewSigner creates a signer in a new directory, which has everything that the signer needs, but not the root's key. ca
// must be a root.
func (ca *CA) NewSigner(dir string) (*CA, error) {
	t, unlock, err := ca.beside(dir, "make a signer")
	if err != nil {
		return nil, err
	}
	defer unlock()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the signer's key: %w", err)
	}
	cert, err := ca.signSigner(pub)
	if err != nil {
		return nil, err
	}
	s := &CA{dir: dir, cert: cert, key: key, root: ca.cert, issued: ledger{filepath.Join(dir, issuedDir)}}
	lists, err := s.firstList(t.lists)
	if err != nil {
		return nil, err
	}
	if err := s.create(newTrust(t.roots, lists)); err != nil {
		return nil, err
	}
	return s, nil
}

// RenewSigner signs a new certificate for a signer (its signer.crt), for the same key and another year. Pass the result
// to TakeSigner. ca must be the root that created the signer.
func (ca *CA) RenewSigner(signerCert []byte) ([]byte, error) {
	if err := ca.mustBeRoot("renew a signer"); err != nil {
		return nil, err
	}
	unlock, err := durable.Lock(ca.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	certs, err := parseCertificates(signerCert, 1)
	if err != nil {
		return nil, fmt.Errorf("renew a signer: its certificate %w", err)
	}
	old := certs[0]
	pub, ok := old.PublicKey.(ed25519.PublicKey)
	if !ok || !old.IsCA || old.Equal(ca.cert) || !signed(old, ca.cert) {
		return nil, fmt.Errorf("renew a signer: %s has not signed it as one: %w", ca.Name(), ErrOtherCA)
	}
	t, err := ca.Trust()
	if err != nil {
		return nil, err
	}
	if t.lists.revoked(&revocationList{issuer: old, root: ca.cert}) {
		return nil, fmt.Errorf("renew a signer: %s was revoked: make another", old.Subject.CommonName)
	}
	cert, err := ca.signSigner(pub)
	if err != nil {
		return nil, err
	}
	return encodeCerts(cert), nil
}

// signSigner signs a certificate for a signer's key. The caller holds the lock.
func (ca *CA) signSigner(pub ed25519.PublicKey) (*x509.Certificate, error) {
	if ca.cert.MaxPathLenZero || ca.cert.MaxPathLen == 0 {
		return nil, &Error{File: ca.CertFile(), Problem: "this root may sign members only", Fix: "create a new one with dcol ca init"}
	}
	now := time.Now()
	end := now.Add(signerValidity)
	if end.After(ca.cert.NotAfter) {
		end = ca.cert.NotAfter
	}
	template := authorityTemplate(now, end)
	template.Subject = pkix.Name{CommonName: signerPrefix + shortKey(pub), Organization: []string{ca.Name()}}
	template.MaxPathLenZero = true
	cert, err := createCertificate(template, ca.cert, pub, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign the signer's certificate: %w", err)
	}
	return cert, ca.issued.add(IssuedCertificate{
		Serial: serialText(cert.SerialNumber), Name: cert.Subject.CommonName, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, Key: PublicKey(pub),
	})
}

// Certificate returns the authority's own certificate as PEM, for RenewSigner.
func (ca *CA) Certificate() []byte { return encodeCerts(ca.cert) }

// TakeSigner installs a signer's renewed certificate and returns the signer with it. It signs the signer's list again,
// so that the list is valid as long as the new certificate.
func (ca *CA) TakeSigner(renewed []byte) (*CA, error) {
	if ca.isRoot() {
		return nil, errors.New("take a signer's certificate: this is a root")
	}
	certs, err := parseCertificates(renewed, 1)
	if err != nil {
		return nil, fmt.Errorf("take a signer's certificate: it %w", err)
	}
	cert := certs[0]
	unlock, err := durable.Lock(ca.dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	t, err := ca.Trust()
	if err != nil {
		return nil, err
	}
	way := linkUp(cert, nil, t.roots.certs)
	switch {
	case !ca.key.Public().(ed25519.PublicKey).Equal(cert.PublicKey):
		return nil, fmt.Errorf("take a signer's certificate: it is for another key: %w", ErrKeyMismatch)
	case !cert.IsCA || way == nil || isRoot(cert):
		return nil, fmt.Errorf("take a signer's certificate: it is not signed by a root in %s: %w", ca.CertFile(), ErrOtherCA)
	case !cert.NotAfter.After(ca.cert.NotAfter):
		return nil, fmt.Errorf("take a signer's certificate: it expires on %s, no later than the present one", stamp(cert.NotAfter))
	}
	if err := CheckTime(cert, time.Now()); err != nil {
		return nil, fmt.Errorf("take a signer's certificate: %w", err)
	}
	if err := durable.Replace(filepath.Join(ca.dir, signerCertFile), encodeCerts(cert), 0o644); err != nil {
		return nil, err
	}
	next := &CA{dir: ca.dir, cert: cert, key: ca.key, root: way[1], issued: ca.issued}
	same := func(entries []x509.RevocationListEntry) ([]x509.RevocationListEntry, error) { return entries, nil }
	if err := next.changeList(same); err != nil {
		return nil, err
	}
	return next, nil
}

func (ca *CA) mustBeRoot(to string) error {
	if !ca.isRoot() {
		return fmt.Errorf("%s: %s is a signer's directory: use the root's directory", to, ca.dir)
	}
	return nil
}
