package collective

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
)

// An authority's files. A root has ca.key, a signer has signer.key and signer.crt. ca.crt and ca.crl are for
// members. The directory issued records every signed certificate, which is needed to revoke a member by name.
// NAME.crt and NAME.key of members whose key is made here remain there until the operator copies them.
const (
	caCertFile     = "ca.crt"
	caCRLFile      = "ca.crl"
	caKeyFile      = "ca.key"
	signerCertFile = "signer.crt"
	signerKeyFile  = "signer.key"
	issuedDir      = "issued"
)

const (
	rootValidity   = 10 * 365 * 24 * time.Hour
	signerValidity = 365 * 24 * time.Hour
)

// backdate makes a new certificate valid at once on a host whose clock is slightly behind.
const backdate = 5 * time.Minute

// CA is an authority, a root or a signer, in one directory. It is immutable and holds only certificate and
// key, so it may be used from any goroutine, and several processes may open the same directory.
type CA struct {
	dir    string
	cert   *x509.Certificate
	key    ed25519.PrivateKey
	root   *x509.Certificate // the same as cert if it is a root
	issued ledger
}

// InitCA creates a collective: a root in dir, with ca.crt and an empty ca.crl for every member, and ca.key,
// which stays there. It refuses to overwrite an existing root, because that would cut off every member.
func InitCA(dir, name string) (*CA, error) {
	if err := CheckCollective(name); err != nil {
		return nil, err
	}
	unlock, err := newDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ca, err := newRoot(dir, name)
	if err != nil {
		return nil, err
	}
	list, err := ca.firstList(listSet{})
	if err != nil {
		return nil, err
	}
	if err := ca.create(newTrust(&rootSet{certs: []*x509.Certificate{ca.cert}}, list)); err != nil {
		return nil, err
	}
	return ca, nil
}

// newRoot creates a root's key and certificate in memory.
func newRoot(dir, name string) (*CA, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	now := time.Now()
	template := authorityTemplate(now, now.Add(rootValidity))
	// The key in the name distinguishes a collective's roots for software that identifies authorities by name.
	template.Subject = pkix.Name{CommonName: name, SerialNumber: shortKey(pub)}
	template.MaxPathLen = 1
	cert, err := createCertificate(template, template, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	return &CA{dir: dir, cert: cert, key: key, root: cert, issued: ledger{filepath.Join(dir, issuedDir)}}, nil
}

// create writes the files of a new authority.
func (ca *CA) create(t *Trust) error {
	name := caKeyFile
	if !ca.isRoot() {
		name = signerKeyFile
		if err := durable.Replace(filepath.Join(ca.dir, signerCertFile), encodeCerts(ca.cert), 0o644); err != nil {
			return err
		}
	}
	if err := createKey(filepath.Join(ca.dir, name), ca.key); err != nil {
		return err
	}
	if err := durable.Replace(ca.CRLFile(), t.Lists(), 0o644); err != nil {
		return err
	}
	// This file is last, because a directory that has it counts as complete.
	return durable.Replace(ca.CertFile(), t.Roots(), 0o644)
}

// OpenCA opens an authority that InitCA, NewSigner or Successor created in dir.
func OpenCA(dir string) (*CA, error) {
	const fix = "name the directory given to dcol ca init, or run it first; if it was there, put it back from its backup"
	ca := &CA{dir: dir, issued: ledger{filepath.Join(dir, issuedDir)}}
	roots, err := readCertificates(ca.CertFile(), maxRoots, fix)
	if err != nil {
		return nil, err
	}
	certs, certPath, keyPath := roots, ca.CertFile(), filepath.Join(dir, caKeyFile)
	end := "create a new one with dcol ca init and issue new certificates to every member"
	if _, err := os.Lstat(filepath.Join(dir, signerKeyFile)); err == nil {
		certPath, keyPath = filepath.Join(dir, signerCertFile), filepath.Join(dir, signerKeyFile)
		end = "have it renewed by the collective's root"
		if certs, err = readCertificates(certPath, 1, fix); err != nil {
			return nil, err
		}
	}
	if ca.key, err = readKey(keyPath, fix); err != nil {
		return nil, err
	}
	for _, c := range certs {
		if ca.key.Public().(ed25519.PublicKey).Equal(c.PublicKey) {
			ca.cert = c
		}
	}
	if ca.cert == nil {
		return nil, &Error{File: keyPath, Problem: "not the key of " + certPath, Err: ErrKeyMismatch, Fix: "restore the two files that belong together"}
	}
	way := linkUp(ca.cert, nil, roots)
	if way == nil {
		return nil, &Error{File: certPath, Problem: "not signed by a root in " + ca.CertFile(), Err: ErrOtherCA, Fix: "let one of the present roots make a signer"}
	}
	ca.root = way[1]
	if err := CheckTime(ca.cert, time.Now()); err != nil {
		return nil, &Error{File: certPath, Problem: "the authority cannot be used", Err: err, Fix: end + ", or correct the clock"}
	}
	t, err := ca.Trust()
	if err != nil {
		return nil, err
	}
	if t.lists.revoked(&revocationList{issuer: ca.cert, root: ca.root}) {
		return nil, &Error{File: certPath, Problem: "this signer was revoked", Fix: "let the collective's root make another"}
	}
	return ca, nil
}

func (ca *CA) isRoot() bool { return ca.cert.Equal(ca.root) }

// Key returns the public key of this authority.
func (ca *CA) Key() PublicKey { return PublicKey(ca.key.Public().(ed25519.PublicKey)) }

// Name returns the collective's name.
func (ca *CA) Name() string { return ca.root.Subject.CommonName }

// Subject returns the authority's name in its certificate. The root revokes a signer by this name.
func (ca *CA) Subject() string { return ca.cert.Subject.CommonName }

// NotAfter returns when the authority's certificate expires. Nothing that it signs is valid longer.
func (ca *CA) NotAfter() time.Time { return ca.cert.NotAfter }

// CertFile returns the path of ca.crt, with which members verify each other.
func (ca *CA) CertFile() string { return filepath.Join(ca.dir, caCertFile) }

// CRLFile returns the path of ca.crl, from which members know revoked certificates.
func (ca *CA) CRLFile() string { return filepath.Join(ca.dir, caCRLFile) }

// Trust reads ca.crt and ca.crl.
func (ca *CA) Trust() (*Trust, error) { return ReadTrust(ca.CertFile(), ca.CRLFile()) }

// TakeTrust copies newer roots and lists from another authority of the collective (its ca.crt and ca.crl;
// either may be empty), as a member does. changed reports whether anything was new.
func (ca *CA) TakeTrust(roots, lists []byte) (changed bool, err error) {
	unlock, err := durable.Lock(ca.dir)
	if err != nil {
		return false, err
	}
	defer unlock()
	before, err := ca.Trust()
	if err != nil {
		return false, err
	}
	return before.take(roots, lists, ca.CertFile(), ca.CRLFile())
}

// beside begins the creation of another authority by this root, in a new directory dir. It locks both
// directories until unlock is called, and returns the present trust. The text what begins errors.
func (ca *CA) beside(dir, what string) (t *Trust, unlock func(), err error) {
	if err := ca.mustBeRoot(what); err != nil {
		return nil, nil, err
	}
	unlockOwn, err := durable.Lock(ca.dir)
	if err != nil {
		return nil, nil, err
	}
	unlockNew, err := newDir(dir)
	if err != nil {
		unlockOwn()
		return nil, nil, err
	}
	unlock = func() { unlockNew(); unlockOwn() }
	if t, err = ca.Trust(); err != nil {
		unlock()
		return nil, nil, err
	}
	return t, unlock, nil
}

// firstList returns the others' lists with this authority's first list, which is empty.
func (ca *CA) firstList(others listSet) (listSet, error) {
	own, err := ca.sign(nil, nextNumber(nil, time.Now()))
	if err != nil {
		return nil, err
	}
	all := maps.Clone(others)
	maps.Copy(all, own)
	return all, nil
}

// newDir creates an authority's directory. It fails if dir contains an authority already.
func newDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(dir, issuedDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the authority's directory: %w", err)
	}
	if unlock, err = durable.Lock(dir); err != nil {
		return nil, err
	}
	for _, f := range []string{caKeyFile, caCertFile, caCRLFile, signerCertFile, signerKeyFile} {
		path := filepath.Join(dir, f)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			unlock()
			return nil, &Error{File: path, Problem: "an authority", Err: ErrExists, Fix: "use it, or choose another directory"}
		}
	}
	return unlock, nil
}

// newSerial returns a random serial number (RFC 5280, 4.1.2.2 allows 20 bytes), which does not reveal the number of
// members.
func newSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	b[0] &= 0x7f
	b[0] |= 0x01 // positive and never zero
	return new(big.Int).SetBytes(b[:])
}

func authorityTemplate(now, notAfter time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          newSerial(),
		NotBefore:             now.Add(-backdate),
		NotAfter:              notAfter,
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
}

func createCertificate(template, parent *x509.Certificate, pub ed25519.PublicKey, key ed25519.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// shortKey returns enough of a key to distinguish a collective's authorities.
func shortKey(key ed25519.PublicKey) string { return PublicKey(key).String()[:16] }
