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

// An authority's files. A root has ca.key, a signer signer.key and signer.crt. ca.crt and ca.crl are what
// members get, issued is what was ever signed: revoking a member by name needs it. NAME.crt and NAME.key
// of members whose key is made here lie beside them until they are handed over.
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

// backdate lets a certificate be used at once by a host whose clock is a little behind.
const backdate = 5 * time.Minute

// CA is an authority, a root or a signer, kept in one directory. It is never changed and holds nothing but
// certificate and key, so it may be used from any goroutine, and several processes may open one.
type CA struct {
	dir    string
	cert   *x509.Certificate
	key    ed25519.PrivateKey
	root   *x509.Certificate // the same as cert if it is a root
	issued ledger
}

// InitCA makes a new collective: a root in dir, with ca.crt and an empty ca.crl for every member, and
// ca.key, which stays. It refuses to overwrite one that is there, as that would cut off every member.
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

// newRoot makes a root's key and certificate, in memory.
func newRoot(dir, name string) (*CA, error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	now := time.Now()
	template := authorityTemplate(now, now.Add(rootValidity))
	// The key in the name keeps a collective's roots apart for software that knows authorities by name.
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
	// Last, because a directory with it counts as complete.
	return durable.Replace(ca.CertFile(), t.Roots(), 0o644)
}

// OpenCA opens an authority: what InitCA, NewSigner or Successor made in dir.
func OpenCA(dir string) (*CA, error) {
	const mend = "name the directory given to dcol ca init, or run it first; if it was there, put it back from its backup"
	ca := &CA{dir: dir, issued: ledger{filepath.Join(dir, issuedDir)}}
	roots, err := readCertificates(ca.CertFile(), maxRoots, mend)
	if err != nil {
		return nil, err
	}
	certs, certPath, keyPath := roots, ca.CertFile(), filepath.Join(dir, caKeyFile)
	end := "create a new one with dcol ca init and issue new certificates to every member"
	if _, err := os.Lstat(filepath.Join(dir, signerKeyFile)); err == nil {
		certPath, keyPath = filepath.Join(dir, signerCertFile), filepath.Join(dir, signerKeyFile)
		end = "have it renewed by the collective's root"
		if certs, err = readCertificates(certPath, 1, mend); err != nil {
			return nil, err
		}
	}
	if ca.key, err = readKey(keyPath, mend); err != nil {
		return nil, err
	}
	for _, c := range certs {
		if ca.key.Public().(ed25519.PublicKey).Equal(c.PublicKey) {
			ca.cert = c
		}
	}
	if ca.cert == nil {
		return nil, &Error{File: keyPath, Problem: "not the key of " + certPath, Err: ErrKeyMismatch, Mend: "restore the two files that belong together"}
	}
	way := linkUp(ca.cert, nil, roots)
	if way == nil {
		return nil, &Error{File: certPath, Problem: "not signed by a root in " + ca.CertFile(), Err: ErrOtherCA, Mend: "let one of the present roots make a signer"}
	}
	ca.root = way[1]
	if err := CheckTime(ca.cert, time.Now()); err != nil {
		return nil, &Error{File: certPath, Problem: "the authority cannot be used", Err: err, Mend: end + ", or correct the clock"}
	}
	t, err := ca.Trust()
	if err != nil {
		return nil, err
	}
	if t.lists.revoked(&revocationList{issuer: ca.cert, root: ca.root}) {
		return nil, &Error{File: certPath, Problem: "this signer was revoked", Mend: "let the collective's root make another"}
	}
	return ca, nil
}

func (ca *CA) isRoot() bool { return ca.cert.Equal(ca.root) }

// Key is the public half of what this authority signs with.
func (ca *CA) Key() PublicKey { return PublicKey(ca.key.Public().(ed25519.PublicKey)) }

// Name is the collective's name.
func (ca *CA) Name() string { return ca.root.Subject.CommonName }

// Subject is what this authority is called in its certificate: by that name its root can revoke a signer.
func (ca *CA) Subject() string { return ca.cert.Subject.CommonName }

// NotAfter is the authority's end. Nothing that it signs lasts longer.
func (ca *CA) NotAfter() time.Time { return ca.cert.NotAfter }

// CertFile is what every member needs to know the others.
func (ca *CA) CertFile() string { return filepath.Join(ca.dir, caCertFile) }

// CRLFile is what every member needs to refuse those revoked.
func (ca *CA) CRLFile() string { return filepath.Join(ca.dir, caCRLFile) }

// Trust reads what members get.
func (ca *CA) Trust() (*Trust, error) { return ReadTrust(ca.CertFile(), ca.CRLFile()) }

// TakeTrust takes newer roots and lists from another authority of the collective (its ca.crt and ca.crl;
// either may be empty), as a member does. changed says whether there was anything new.
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

// beside is how another authority begins, made by this root in a directory of its own: nobody else changes
// either until unlock, and t is what members get now. what is for the error.
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

// firstList is the others' lists with this authority's first, which is empty.
func (ca *CA) firstList(others listSet) (listSet, error) {
	own, err := ca.sign(nil, nextNumber(nil, time.Now()))
	if err != nil {
		return nil, err
	}
	all := maps.Clone(others)
	maps.Copy(all, own)
	return all, nil
}

// newDir makes an authority's directory, where none may be yet.
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
			return nil, &Error{File: path, Problem: "an authority", Err: ErrExists, Mend: "use it, or choose another directory"}
		}
	}
	return unlock, nil
}

// newSerial is random (RFC 5280, 4.1.2.2 allows 20 bytes): it also must not tell how many members there are.
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

// shortKey is enough of a key to tell a collective's authorities apart.
func shortKey(key ed25519.PublicKey) string { return PublicKey(key).String()[:16] }
