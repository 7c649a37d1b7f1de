package enrol

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// alpn distinguishes this interface from sessions and from the bus, which use other names. Package http accepts no
// other.
const alpn = "http/1.1"

// ServerTLS returns the configuration of a coordinator's listener. It sends the roots too, as a host that joins has only
// the hash of one. A client may show any certificate: only its key is authenticated.
func ServerTLS(id *collective.Identity) *tls.Config {
	base := id.ServerTLS(alpn)
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{alpn},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			config, err := base.GetConfigForClient(hello)
			if err != nil {
				return nil, err
			}
			shown := config.Certificates[0]
			shown.Certificate = append(shown.Certificate[:len(shown.Certificate):len(shown.Certificate)], rootsOf(id.Trust())...)
			config.Certificates = []tls.Certificate{shown}
			config.ClientAuth = tls.RequestClientCert
			return config, nil
		},
	}
}

// rootsOf returns the roots' certificates (DER).
func rootsOf(t *collective.Trust) (out [][]byte) {
	for block, rest := pem.Decode(t.Roots()); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			out = append(out, block.Bytes)
		}
	}
	return out
}

// RootOf returns the hash for a new line: that of the root of the coordinator's own certificate, or zero if none of the
// roots is.
func RootOf(id *collective.Identity) (hash [32]byte) {
	for _, der := range rootsOf(id.Trust()) {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			continue // cannot happen: the trust was read from it
		}
		if key, ok := ed25519Key(cert); ok && key == id.Self().Issuer.Root {
			hash = HashRoot(der)
		}
	}
	return hash
}

// ed25519Key returns the key of a certificate, if it is an Ed25519 key.
func ed25519Key(c *x509.Certificate) (collective.PublicKey, bool) {
	key, ok := c.PublicKey.(ed25519.PublicKey)
	if !ok {
		return collective.PublicKey{}, false
	}
	return collective.PublicKey(key), true
}

// verifier returns an error if the shown certificates are not those of the coordinator with this name.
type verifier func(shown []*x509.Certificate, name string, at time.Time) error

// verify is a verifier for a host that has only the line: the server must show the root with the line's hash.
func (l Line) verify(shown []*x509.Certificate, name string, at time.Time) error {
	var root *x509.Certificate
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		if HashRoot(c.Raw) == l.Root {
			root = c
		} else {
			between.AddCert(c)
		}
	}
	if root == nil {
		return fmt.Errorf("it does not have the root in the invitation: it is not a coordinator of %s, or the collective has a new root; then get a new invitation", l.Collective)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	_, err := shown[0].Verify(x509.VerifyOptions{
		DNSName: name, Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// verifyMember returns a verifier that uses a member's roots and revocation lists.
func verifyMember(t *collective.Trust) verifier {
	return func(shown []*x509.Certificate, name string, at time.Time) error {
		var chain [][]byte
		for _, c := range shown {
			if !bytes.Equal(c.RawSubject, c.RawIssuer) { // we use our own roots
				chain = append(chain, c.Raw)
			}
		}
		m, err := t.Verify(chain, at)
		if err == nil && m.Name != name {
			err = fmt.Errorf("its certificate names %s", m.Name)
		}
		return err
	}
}

// anyone is a verifier that accepts every server, for data that is signed.
func anyone([]*x509.Certificate, string, time.Time) error { return nil }

// atAnyTime returns a verifier that ignores this host's clock: certificates are verified at the time when the server's
// own became valid.
func (v verifier) atAnyTime() verifier {
	return func(shown []*x509.Certificate, name string, _ time.Time) error {
		return v(shown, name, shown[0].NotBefore)
	}
}

// clientTLS returns the configuration for one connection. With an identity, the client authenticates.
func clientTLS(name string, v verifier, id *collective.Identity) *tls.Config {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{alpn},
		ServerName:         name,
		InsecureSkipVerify: true, // VerifyConnection verifies
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return errors.New("it has no certificate")
			}
			return v(cs.PeerCertificates, name, time.Now())
		},
		SessionTicketsDisabled: true,
	}
	if id != nil {
		config.GetClientCertificate = id.ClientTLS(alpn, name).GetClientCertificate
	}
	return config
}
