package collective

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// The authority's files. Beside them lie NAME.crt and NAME.key of each member until they are handed
// over, and issued/SERIAL.crt of everything ever signed: revoking a member by name needs them all.
const (
	caCertFile = "ca.crt"
	caKeyFile  = "ca.key"
	caCRLFile  = "ca.crl"
	issuedDir  = "issued"
)

const caValidity = 10 * 365 * 24 * time.Hour

// backdate lets a certificate be used at once by a host whose clock is a little behind.
const backdate = 5 * time.Minute

// CA is the collective's certificate authority, kept in one directory.
type CA struct {
	dir  string
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

// InitCA makes a new authority in dir: ca.crt and an empty ca.crl for every member, and ca.key, which
// stays. It refuses to overwrite one that is there, as that would cut off every member.
func InitCA(dir, name string) (*CA, error) {
	if name == "" {
		return nil, fmt.Errorf("the collective needs a name")
	}
	if err := os.MkdirAll(filepath.Join(dir, issuedDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the authority's directory: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, f := range []string{caKeyFile, caCertFile, caCRLFile} {
		path := filepath.Join(dir, f)
		if _, err := os.Lstat(path); err == nil {
			return nil, &Error{File: path, Problem: "an authority", Err: ErrExists, Mend: "use it, or choose another directory"}
		}
	}

	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caValidity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the authority's certificate: %w", err)
	}
	ca := &CA{dir: dir, cert: cert, key: key}

	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(dir, caKeyFile), keyPEM, 0o600); err != nil {
		return nil, err
	}
	if err := ca.writeCRL(nil, big.NewInt(1)); err != nil {
		return nil, err
	}
	// Last, because a directory with a certificate counts as complete.
	if err := writeFile(filepath.Join(dir, caCertFile), encodeCert(der), 0o644); err != nil {
		return nil, err
	}
	return ca, nil
}

// OpenCA opens the authority that InitCA made in dir.
func OpenCA(dir string) (*CA, error) {
	const mend = "name the directory given to dcol ca init, or run it first"
	certPath, keyPath := filepath.Join(dir, caCertFile), filepath.Join(dir, caKeyFile)
	cert, err := readCertificate(certPath, mend)
	if err != nil {
		return nil, err
	}
	key, err := readKey(keyPath, mend)
	if err != nil {
		return nil, err
	}
	if !key.Public().(ed25519.PublicKey).Equal(cert.PublicKey) {
		return nil, &Error{File: keyPath, Problem: "not the key of " + certPath, Err: ErrKeyMismatch, Mend: "put back the two files made together"}
	}
	if now := time.Now(); now.After(cert.NotAfter) {
		return nil, &Error{File: certPath, Problem: "the authority ended on " + cert.NotAfter.Format(time.DateOnly), Err: ErrExpired, Mend: "start a new one with dcol ca init and issue every member anew, or set the clock right"}
	}
	return &CA{dir: dir, cert: cert, key: key}, nil
}

// Name is the collective's name.
func (ca *CA) Name() string { return ca.cert.Subject.CommonName }

// CertFile is what every member needs to know the others.
func (ca *CA) CertFile() string { return filepath.Join(ca.dir, caCertFile) }

// CRLFile is what every member needs to refuse those revoked.
func (ca *CA) CRLFile() string { return filepath.Join(ca.dir, caCRLFile) }

// lockDir keeps two commands from signing at once: one revocation would get lost.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the authority's directory: %w", err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		d.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { d.Close() }, nil
}

// newSerial is random (RFC 5280, 4.1.2.2 allows 20 bytes): it also must not tell how many members there are.
func newSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	b[0] &= 0x7f
	b[0] |= 0x01 // positive and never zero
	return new(big.Int).SetBytes(b[:])
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})
}
