package collective

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Member is who is at the other end, as its certificate says.
type Member struct {
	Name      string
	Serial    string
	NotBefore time.Time
	NotAfter  time.Time
}

func memberOf(cert *x509.Certificate) (Member, error) {
	name := cert.Subject.CommonName
	if err := CheckName(name); err != nil {
		return Member{}, fmt.Errorf("certificate of no member: %w", err)
	}
	if len(cert.DNSNames) != 1 || cert.DNSNames[0] != name {
		return Member{}, fmt.Errorf("certificate of no member: it is for %q and for %q", name, cert.DNSNames)
	}
	return Member{Name: name, Serial: serialText(cert.SerialNumber), NotBefore: cert.NotBefore, NotAfter: cert.NotAfter}, nil
}

// ServerTLS is the configuration of a listener. What it lets through is a certificate of the collective,
// valid now; Peer must be asked next, as it knows of revocation. That is not left to the TLS handshake
// because an alert cannot tell the member why it is refused.
func (id *Identity) ServerTLS(alpn string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{alpn},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := id.current()
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				NextProtos:   []string{alpn},
				Certificates: []tls.Certificate{c.cert},
				ClientAuth:   tls.RequireAndVerifyClientCert,
				ClientCAs:    c.pool,
				// A resumed session would skip the question whether the member is still one.
				SessionTicketsDisabled: true,
			}, nil
		},
	}
}

// ClientTLS is the configuration for one connection to the member of the given name.
func (id *Identity) ClientTLS(alpn, name string) *tls.Config {
	c := id.current()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{alpn},
		ServerName: name,
		RootCAs:    c.pool,
		// Sent even if the other side asks for another authority's: its refusal then says so.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.cert, nil },
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := id.Peer(cs)
			return err
		},
		SessionTicketsDisabled: true,
	}
}

func (id *Identity) current() *credentials {
	id.Refresh()
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.creds
}

// Peer is who a finished handshake was with; an error if it is no member, or no longer one.
func (id *Identity) Peer(cs tls.ConnectionState) (Member, error) {
	if len(cs.VerifiedChains) == 0 {
		return Member{}, errors.New("the other side showed no certificate of this collective")
	}
	m, err := memberOf(cs.VerifiedChains[0][0])
	if err != nil {
		return Member{}, err
	}
	return m, id.Check(m)
}

// Check says whether a member known from an earlier handshake still is one.
func (id *Identity) Check(m Member) error {
	id.mu.Lock()
	at, revoked := id.revoked.at[m.Serial]
	id.mu.Unlock()
	if revoked {
		return &RevokedError{Name: m.Name, Serial: m.Serial, At: at}
	}
	if time.Now().After(m.NotAfter) {
		return fmt.Errorf("the certificate of %s ended on %s: %w", m.Name, stamp(m.NotAfter), ErrExpired)
	}
	return nil
}
