package collective

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"time"
)

// Files holds the paths of a member's identity.
type Files struct {
	Certificate string // followed by the signer's, if a signer signed it
	Key         string
	CA          string
	CRL         string // empty: no certificate is revoked
}

// credentials holds Certificate and Key as they were read together. It is immutable.
type credentials struct {
	cert    tls.Certificate
	leaf    *x509.Certificate
	between []*x509.Certificate
	key     ed25519.PrivateKey
}

// own holds credentials with the chain up to a root: this host as others see it.
type own struct {
	*credentials
	chain  []*x509.Certificate // from the member's own to the root's
	member Member
}

const (
	certFix = "copy NAME.crt from the authority (dcol ca issue NAME)"
	keyFix  = "copy NAME.key from the authority (dcol ca issue NAME)"
)

func readCredentials(f Files) (*credentials, error) {
	certs, err := readCertificates(f.Certificate, maxChain, certFix)
	if err != nil {
		return nil, err
	}
	key, err := readKey(f.Key, keyFix)
	if err != nil {
		return nil, err
	}
	c := newCredentials(certs, key)
	if !key.Public().(ed25519.PublicKey).Equal(c.leaf.PublicKey) {
		return nil, &Error{File: f.Key, Problem: "not the key of " + f.Certificate, Err: ErrKeyMismatch, Fix: "copy both files of the same certificate from the authority"}
	}
	return c, nil
}

func newCredentials(certs []*x509.Certificate, key ed25519.PrivateKey) *credentials {
	c := &credentials{leaf: certs[0], between: certs[1:], key: key}
	c.cert = tls.Certificate{PrivateKey: key, Leaf: c.leaf}
	for _, cert := range certs {
		c.cert.Certificate = append(c.cert.Certificate, cert.Raw)
	}
	return c
}

// under returns the credentials with the chain from the member's certificate to one of the roots.
func (c *credentials) under(f Files, roots *rootSet) (*own, error) {
	chain := linkUp(c.leaf, c.between, roots.certs)
	if chain == nil {
		return nil, &Error{File: f.Certificate, Problem: "not signed under " + f.CA, Err: ErrOtherCA,
			Fix: "copy certificate, key and ca.crt from the same authority"}
	}
	m, err := memberOf(chain)
	if err != nil {
		return nil, &Error{File: f.Certificate, Problem: err.Error(), Fix: certFix}
	}
	return &own{credentials: c, chain: chain, member: m}, nil
}

// checkTime checks that the certificates are valid now. It is separate from reading them, because time passes
// without a file changing.
func (o *own) checkTime(f Files, now time.Time) error {
	last := len(o.chain) - 1
	for i := last; i >= 0; i-- {
		err := CheckTime(o.chain[i], now)
		if err == nil {
			continue
		}
		file, fix := f.Certificate, "have it replaced (dcol ca issue --reissue "+o.member.Name+")"
		if i == last {
			file, fix = f.CA, "the collective needs a new authority (dcol ca init)"
		}
		if clock, ok := AsClockError(err, now); ok && clock.Off() < 0 {
			fix = "correct this host's clock"
		} else {
			fix += ", or correct this host's clock"
		}
		return &Error{File: file, Problem: "not valid now", Err: err, Fix: fix}
	}
	return nil
}
