package session

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// newSessionID returns a random ID. It cannot fail (crypto/rand).
func newSessionID() (id wire.SessionID) {
	_, _ = rand.Read(id[:])
	return id
}

// attest returns the client's signed statement about a session after the greetings. If the
// certificate has been replaced since the handshake, the waypoint refuses it, and the next session
// uses the new certificate.
func attest(identity *collective.Identity, waypoint string, session wire.SessionID, now time.Time) wire.Attestation {
	self := identity.Self()
	s := wire.Statement{
		Collective: self.Collective, Member: self.Name, Serial: self.Serial, Waypoint: waypoint, Session: session,
		Time: now.UTC().Truncate(time.Millisecond),
	}
	return wire.Attestation{Time: s.Time, Signature: identity.Sign(s.Message())}
}

// attested checks the client's first message after the greetings. It returns proof that the session
// is the member's, or why the session ends. Nothing is granted without proof.
func (s *Server) attested(ctx context.Context, l *line, decoder *wire.Decoder) (*wire.Proof, ending) {
	m, err := decoder.Next()
	if err != nil {
		return nil, endingOf(ctx, err)
	}
	said, ok := m.(wire.Attestation)
	if !ok {
		return nil, ending{closeUnattested, fmt.Sprintf("a %T came before the statement on the session", m)}
	}
	now := time.Now()
	if off := said.Time.Sub(now); off.Abs() > wire.MaxClockOff {
		return nil, ending{closeUnattested, fmt.Sprintf("the statement on the session is of %s, and by this waypoint's clock it is %s",
			said.Time.UTC().Format(time.DateTime), now.UTC().Format(time.DateTime))}
	}
	self := s.config.Identity.Self()
	p := &wire.Proof{
		Statement: wire.Statement{
			Collective: self.Collective, Member: l.member.Name, Serial: l.member.Serial, Waypoint: self.Name, Session: l.session, Time: said.Time,
		},
		Signature: said.Signature,
		Chain:     shownChain(l.conn.ConnectionState().TLS),
	}
	if !p.SignedBy(l.member.Key[:], p.Signature) {
		return nil, ending{closeUnattested, "the statement on the session is not signed with the key of the certificate " + p.Serial}
	}
	return p, ending{}
}

// shownChain returns the certificates that others need to identify the member: its chain without
// the root, which they have.
func shownChain(cs tls.ConnectionState) [][]byte {
	verified := cs.VerifiedChains[0]
	var chain [][]byte
	for _, cert := range verified[:max(1, len(verified)-1)] {
		chain = append(chain, cert.Raw)
	}
	return chain
}

// unattested returns the problem that the waypoint rejected our statement.
func unattested(w where, app *quic.ApplicationError) *Problem {
	return &Problem{
		Code: Unattested, Text: fmt.Sprintf("%s rejected our statement on the session (%q)", w.waypoint, app.ErrorMessage),
		Fix: "compare the clocks of the two hosts; if they agree, update the older of the two agents",
	}
}
