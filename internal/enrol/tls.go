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

// alpn tells this interface from a member's session and from the bus, which have names of their own; package
// http takes no other.
const alpn = "http/1.1"

// ServerTLS is the configuration of a coordinator's listener. It shows the roots too, because who joins has
// only the hash of one. A client may show any certificate: what it proves is that the client has its key.
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

// rootsOf are the roots' certificates (DER).
func rootsOf(t *collective.Trust) (out [][]byte) {
	for block, rest := pem.Decode(t.Roots()); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			out = append(out, block.Bytes)
		}
	}
	return out
}

// RootOf is what a new line says of the roots that there are: the one that the coordinator's own certificate
// leads to. The zero hash: it leads to none.
func RootOf(id *collective.Identity) (hash [32]byte) {
	for _, der := range rootsOf(id.Trust()) {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			continue // cannot be: the trust was read from it
		}
		if key, ok := ed25519Key(cert); ok && key == id.Self().Issuer.Root {
			hash = HashRoot(der)
		}
	}
	return hash
}

// ed25519Key is the key of a certificate, if it is one of ours by kind.
func ed25519Key(c *x509.Certificate) (collective.PublicKey, bool) {
	key, ok := c.PublicKey.(ed25519.PublicKey)
	if !ok {
		return collective.PublicKey{}, false
	}
	return collective.PublicKey(key), true
}

// verifier says whether a server, by what it showed, is the coordinator of that name at a time.
type verifier func(shown []*x509.Certificate, name string, at time.Time) error

// verify asks for the root that the line knows.
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
		return fmt.Errorf("it does not show the root that the line names: it is no coordinator of %s, or the collective has another root now", l.Collective)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	_, err := shown[0].Verify(x509.VerifyOptions{
		DNSName: name, Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// verifyMember asks what a member knows: its roots, and who is revoked.
func verifyMember(t *collective.Trust) verifier {
	return func(shown []*x509.Certificate, name string, at time.Time) error {
		var chain [][]byte
		for _, c := range shown {
			if !bytes.Equal(c.RawSubject, c.RawIssuer) { // the roots that matter are ours
				chain = append(chain, c.Raw)
			}
		}
		m, err := t.Verify(chain, at)
		if err == nil && m.Name != name {
			err = fmt.Errorf("it is %s", m.Name)
		}
		return err
	}
}

// anyone lets every server do: what it says proves itself.
func anyone([]*x509.Certificate, string, time.Time) error { return nil }

// atAnyTime is a verifier that takes no notice of this host's clock: whoever was the coordinator when its
// certificate was made may say what time it is.
func (v verifier) atAnyTime() verifier {
	return func(shown []*x509.Certificate, name string, _ time.Time) error {
		return v(shown, name, shown[0].NotBefore)
	}
}

// clientTLS is the configuration for one connection. With an identity, it is proved to the server.
func clientTLS(name string, v verifier, id *collective.Identity) *tls.Config {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{alpn},
		ServerName:         name,
		InsecureSkipVerify: true, // VerifyConnection does it
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return errors.New("it shows no certificate")
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
