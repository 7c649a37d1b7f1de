package collective

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Files is where a member's identity lies.
type Files struct {
	Certificate string
	Key         string
	CA          string
	CRL         string // empty: nobody counts as revoked
}

// credentials is one consistent reading of Certificate, Key and CA; it is never changed.
type credentials struct {
	cert tls.Certificate
	leaf *x509.Certificate
	key  ed25519.PrivateKey
	ca   *x509.Certificate
	pool *x509.CertPool
}

// revocations is one reading of the CRL; it is never changed.
type revocations struct {
	number *big.Int
	at     map[string]time.Time // by serial number
}

func readCredentials(f Files) (*credentials, error) {
	const (
		certMend = "copy NAME.crt from the authority (dcol ca issue NAME)"
		keyMend  = "copy NAME.key from the authority (dcol ca issue NAME)"
		caMend   = "copy ca.crt from the authority"
	)
	ca, err := readCertificate(f.CA, caMend)
	if err != nil {
		return nil, err
	}
	if !ca.IsCA {
		return nil, &Error{File: f.CA, Problem: "a member's certificate, not an authority's", Mend: caMend}
	}
	leaf, err := readCertificate(f.Certificate, certMend)
	if err != nil {
		return nil, err
	}
	key, err := readKey(f.Key, keyMend)
	if err != nil {
		return nil, err
	}
	if !key.Public().(ed25519.PublicKey).Equal(leaf.PublicKey) {
		return nil, &Error{File: f.Key, Problem: "not the key of " + f.Certificate, Err: ErrKeyMismatch, Mend: "copy both files of one issue from the authority"}
	}
	if err := leaf.CheckSignatureFrom(ca); err != nil {
		return nil, &Error{File: f.Certificate, Problem: "not signed by " + f.CA, Err: errors.Join(ErrOtherCA, err), Mend: "copy certificate, key and ca.crt from the same authority"}
	}
	c := &credentials{
		cert: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf},
		leaf: leaf,
		key:  key,
		ca:   ca,
		pool: x509.NewCertPool(),
	}
	c.pool.AddCert(ca)
	if _, err := memberOf(leaf); err != nil {
		return nil, &Error{File: f.Certificate, Problem: err.Error(), Mend: certMend}
	}
	return c, nil
}

// checkTime tells whether the certificates are valid now. It is apart from reading them because time
// passes without a file changing.
func (c *credentials) checkTime(f Files, now time.Time) error {
	for _, of := range []struct {
		file string
		cert *x509.Certificate
		mend string
	}{
		{f.CA, c.ca, "the collective needs a new authority (dcol ca init)"},
		{f.Certificate, c.leaf, "have it issued anew (dcol ca issue --reissue " + c.leaf.Subject.CommonName + ")"},
	} {
		switch {
		case now.After(of.cert.NotAfter):
			return &Error{
				File: of.file, Err: ErrExpired, Problem: fmt.Sprintf("ended on %s and it is %s", stamp(of.cert.NotAfter), stamp(now)),
				Mend: of.mend + ", or set this host's clock right",
			}
		case now.Before(of.cert.NotBefore):
			return &Error{
				File: of.file, Err: ErrNotYetValid, Problem: fmt.Sprintf("begins on %s and it is %s", stamp(of.cert.NotBefore), stamp(now)),
				Mend: "set this host's clock right",
			}
		}
	}
	return nil
}

func readRevocations(f Files, ca *x509.Certificate) (*revocations, error) {
	r := &revocations{number: new(big.Int), at: map[string]time.Time{}}
	if f.CRL == "" {
		return r, nil
	}
	list, err := readCRL(f.CRL, ca)
	if err != nil {
		return nil, err
	}
	r.number = list.Number
	for _, e := range list.RevokedCertificateEntries {
		r.at[serialText(e.SerialNumber)] = e.RevocationTime
	}
	return r, nil
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
