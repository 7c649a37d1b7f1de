package collective

import (
	"crypto/tls"
	"time"
)

// ServerTLS is the configuration of a listener. What it lets through is a certificate of the collective,
// valid now; Peer must be asked next, as it knows of revocation. That is not left to the TLS handshake
// because an alert cannot tell the member why it is refused.
func (id *Identity) ServerTLS(alpn string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{alpn},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			o, t := id.refreshed()
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				NextProtos:   []string{alpn},
				Certificates: []tls.Certificate{o.cert},
				ClientAuth:   tls.RequireAndVerifyClientCert,
				ClientCAs:    t.pool,
				// A resumed session would skip the question whether the member is still one.
				SessionTicketsDisabled: true,
			}, nil
		},
	}
}

// ClientTLS is the configuration for one connection to the member of the given name.
func (id *Identity) ClientTLS(alpn, name string) *tls.Config {
	o, t := id.refreshed()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{alpn},
		ServerName: name,
		RootCAs:    t.pool,
		// Sent even if the other side asks for another authority's: its refusal then says so.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &o.cert, nil },
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := id.Peer(cs)
			return err
		},
		SessionTicketsDisabled: true,
	}
}

// Trust is whom this member believes now, by its files.
func (id *Identity) Trust() *Trust {
	_, t := id.refreshed()
	return t
}

func (id *Identity) refreshed() (*own, *Trust) {
	id.Refresh()
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.own, id.trust
}

// Peer is who a finished handshake was with; an error if it is no member, or no longer one.
func (id *Identity) Peer(cs tls.ConnectionState) (Member, error) {
	id.mu.Lock()
	t := id.trust
	id.mu.Unlock()
	return t.member(cs.VerifiedChains, time.Now())
}

// Check says whether a member known from an earlier handshake still is one.
func (id *Identity) Check(m Member) error {
	id.mu.Lock()
	t := id.trust
	id.mu.Unlock()
	return t.Check(m, time.Now())
}
