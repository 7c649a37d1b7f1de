package collective

import (
	"crypto/tls"
	"time"
)

// ServerTLS returns the configuration of a listener. It accepts valid certificates of the collective. The caller
// must then call Peer, which checks revocation. The handshake does not, because a TLS alert could not tell the
// member the reason.
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
				// A resumed session would skip the check whether the peer is still a member.
				SessionTicketsDisabled: true,
			}, nil
		},
	}
}

// ClientTLS returns the configuration for one connection to the named member.
func (id *Identity) ClientTLS(alpn, name string) *tls.Config {
	o, t := id.refreshed()
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{alpn},
		ServerName: name,
		RootCAs:    t.pool,
		// Sent even if the other side requests one of another authority, so that it refuses with that reason.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &o.cert, nil },
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := id.Peer(cs)
			return err
		},
		SessionTicketsDisabled: true,
	}
}

// Trust returns the present roots and lists, by this member's files.
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

// Peer returns the member at the other end of a completed handshake, or an error if it is not a member.
func (id *Identity) Peer(cs tls.ConnectionState) (Member, error) {
	id.mu.Lock()
	t := id.trust
	id.mu.Unlock()
	return t.member(cs.VerifiedChains, time.Now())
}

// Check returns an error if m, known from an earlier handshake, is no longer a member.
func (id *Identity) Check(m Member) error {
	id.mu.Lock()
	t := id.trust
	id.mu.Unlock()
	return t.Check(m, time.Now())
}
