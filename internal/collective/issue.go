package collective

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Request is what a member's certificate shall say.
type Request struct {
	Name      string
	NotBefore time.Time // zero: now, less five minutes for clocks that are behind
	Validity  time.Duration
	// Reissue replaces NAME.crt and NAME.key that are there. The certificate replaced stays valid
	// until it ends or is revoked.
	Reissue bool
}

// Issued is a member's new identity: two files to carry to its host.
type Issued struct {
	Name     string
	Serial   string
	CertFile string
	KeyFile  string
	NotAfter time.Time
}

// Issue makes a key and a certificate for a member, good as client and as waypoint.
func (ca *CA) Issue(r Request) (Issued, error) {
	if err := CheckName(r.Name); err != nil {
		return Issued{}, fmt.Errorf("issue a certificate: %w", err)
	}
	if r.Validity <= 0 {
		return Issued{}, fmt.Errorf("issue a certificate for %s: a validity of %v is none: give one like 2160h", r.Name, r.Validity)
	}
	unlock, err := lockDir(ca.dir)
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
				return Issued{}, &Error{File: path, Problem: "a certificate for " + r.Name, Err: ErrExists, Mend: "choose another name, or replace it with --reissue"}
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
	notAfter := notBefore.Add(r.Validity)
	if r.NotBefore.IsZero() {
		notAfter = notAfter.Add(backdate)
	}
	if notAfter.After(ca.cert.NotAfter) {
		return Issued{}, fmt.Errorf("issue a certificate for %s until %s: the authority itself ends on %s: give a shorter validity",
			r.Name, notAfter.Format(time.DateOnly), ca.cert.NotAfter.Format(time.DateOnly))
	}
	serial := newSerial()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: r.Name},
		DNSNames:              []string{r.Name},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, ca.cert, pub, ca.key)
	if err != nil {
		return Issued{}, fmt.Errorf("sign the certificate of %s: %w", r.Name, err)
	}
	out.Serial, out.NotAfter = serialText(serial), notAfter

	// The record first: a certificate nobody remembers could not be revoked by name.
	certPEM := encodeCert(der)
	if err := writeFile(filepath.Join(ca.dir, issuedDir, out.Serial+".crt"), certPEM, 0o644); err != nil {
		return Issued{}, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Issued{}, err
	}
	if err := writeFile(out.KeyFile, keyPEM, 0o600); err != nil {
		return Issued{}, err
	}
	if err := writeFile(out.CertFile, certPEM, 0o644); err != nil {
		return Issued{}, err
	}
	return out, nil
}
