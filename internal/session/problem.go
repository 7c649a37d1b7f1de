package session

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/printable"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// ProblemCode identifies a problem for programs. Codes never change.
type ProblemCode string

// The reasons why a waypoint cannot be used.
const (
	Connecting   ProblemCode = "connecting"    // no answer or error yet
	NoAnswer     ProblemCode = "no-answer"     // it never answered
	Lost         ProblemCode = "lost"          // it stopped answering
	Nonsense     ProblemCode = "nonsense"      // it answers, but not as a waypoint does
	NoRoute      ProblemCode = "no-route"      // this host cannot send there
	NoWay        ProblemCode = "no-way"        // the way to it could not be opened
	OwnIdentity  ProblemCode = "own-identity"  // our certificate is not usable
	Expired      ProblemCode = "expired"       // its certificate is not valid now
	OtherCA      ProblemCode = "other-ca"      // it and we belong to different collectives
	WrongName    ProblemCode = "wrong-name"    // it is another member
	Revoked      ProblemCode = "revoked"       // it was revoked
	RefusedUs    ProblemCode = "refused-us"    // it does not accept our certificate
	Unattested   ProblemCode = "unattested"    // it rejected our statement on the session
	OtherVersion ProblemCode = "version"       // it speaks another version of dcol
	Restarted    ProblemCode = "restarted"     // it has forgotten the session
	Stopping     ProblemCode = "stopping"      // its agent was stopped
	Displaced    ProblemCode = "displaced"     // newer sessions of ours replaced this one
	NetworkMoved ProblemCode = "network-moved" // our address changed and the session did not follow
	Stopped      ProblemCode = "stopped"       // our own agent stops
	OtherProblem ProblemCode = "other"         // none of these
)

// Problem describes why a waypoint cannot be used now and how to fix it.
type Problem struct {
	Code ProblemCode
	Text string
	Fix  string
	Err  error // from QUIC or TLS; may be nil
}

func (p *Problem) Error() string {
	if p.Fix == "" {
		return p.Text
	}
	return p.Text + ": " + p.Fix
}

func (p *Problem) Unwrap() error { return p.Err }

// ErrDown matches, with errors.Is, the error of a request without a session.
var ErrDown = errors.New("no session")

// DownError reports that there is no session with a waypoint, and why.
type DownError struct {
	Waypoint string
	Problem  *Problem
}

func (e *DownError) Error() string {
	return fmt.Sprintf("no session with %s: %v", e.Waypoint, e.Problem)
}
func (e *DownError) Unwrap() error { return e.Problem }

// Is reports whether target is ErrDown.
func (e *DownError) Is(target error) bool { return target == ErrDown }

// where holds the facts needed to explain an error.
type where struct {
	waypoint string
	addr     netip.AddrPort
	// heard is set if any datagram came back.
	heard bool
	// up is set if the session was established.
	up bool
}

// TLS alerts (RFC 8446, 6.2) as QUIC transport errors (RFC 9001, 4.8).
const (
	cryptoError             = 0x100
	alertBadCertificate     = cryptoError + 42
	alertCertificateRevoked = cryptoError + 44
	alertCertificateExpired = cryptoError + 45
	alertCertificateUnknown = cryptoError + 46
	alertUnknownCA          = cryptoError + 48
	alertAccessDenied       = cryptoError + 49
	alertProtocolVersion    = cryptoError + 70
	alertCertificateNeeded  = cryptoError + 116
	alertNoALPN             = cryptoError + 120
)

// explain returns the problem for a session that failed to open or ended with err.
func explain(w where, err error) *Problem {
	if already, ok := errors.AsType[*Problem](err); ok {
		return already
	}
	p := classify(w, err)
	p.Text, p.Err = printable.Text(p.Text), err
	return p
}

func classify(w where, err error) *Problem {
	var (
		revoked   *collective.RevokedError
		unknownCA x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		app       *quic.ApplicationError
		transport *quic.TransportError
		version   *quic.VersionNegotiationError
		reset     *quic.StatelessResetError
		handshake *quic.HandshakeTimeoutError
		idle      *quic.IdleTimeoutError
		errno     syscall.Errno
	)
	updateOlder := "update the older of the two agents"
	switch {
	case errors.As(err, &revoked):
		return &Problem{Code: Revoked, Text: revoked.Error(), Fix: "take " + w.waypoint + " out of your configuration, or ask it to get a new certificate"}
	case errors.As(err, &host):
		return &Problem{Code: WrongName, Text: fmt.Sprintf("the member at %v is %v, not %s", w.addr, host.Certificate.Subject.CommonName, w.waypoint), Fix: "correct name or addresses of this [[client.waypoint]]"}
	case errors.As(err, &unknownCA), errors.Is(err, collective.ErrOtherCA):
		return &Problem{Code: OtherCA, Text: fmt.Sprintf("the certificate of %s at %v is not of your collective", w.waypoint, w.addr), Fix: "both need certificates of the same authority, and its ca.crt"}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired, errors.Is(err, collective.ErrExpired):
		return &Problem{Code: Expired, Text: fmt.Sprintf("the certificate of %s is not valid now (%v)", w.waypoint, inTime(err)), Fix: "it needs a new one (dcol ca issue --reissue " + w.waypoint + "), or this host's clock is wrong"}
	case errors.As(err, &app):
		return byWaypoint(w, app)
	case errors.As(err, &reset):
		return &Problem{Code: Restarted, Text: w.waypoint + " has restarted", Fix: "nothing to do, a new session is being made"}
	case errors.As(err, &version):
		return &Problem{Code: OtherVersion, Text: fmt.Sprintf("%s at %v speaks another version of QUIC", w.waypoint, w.addr), Fix: updateOlder}
	case errors.As(err, &transport) && transport.Remote:
		return byAlert(w, transport)
	case errors.As(err, &transport) && transport.ErrorCode >= cryptoError && transport.ErrorCode < cryptoError+0x100:
		return &Problem{Code: OtherCA, Text: fmt.Sprintf("the TLS handshake with %s at %v failed (%v)", w.waypoint, w.addr, err), Fix: "check that a dcol agent of your collective runs there"}
	case errors.As(err, &transport), errors.Is(err, wire.ErrFraming):
		return nonsense(w, fmt.Sprintf("%s at %v sent a message that cannot be decoded (%v)", w.waypoint, w.addr, err))
	case errors.As(err, &errno), errors.Is(err, os.ErrPermission):
		return &Problem{Code: NoRoute, Text: fmt.Sprintf("this host cannot send to %v/udp (%v)", w.addr, errnoText(err, errno)), Fix: "see ip route get " + w.addr.Addr().String() + " and this host's firewall"}
	case errors.As(err, &handshake), errors.As(err, &idle), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		switch {
		case w.up:
			return &Problem{Code: Lost, Text: fmt.Sprintf("%s stopped answering on %v/udp", w.waypoint, w.addr), Fix: "is its host up and the network between you?"}
		case w.heard:
			return nonsense(w, fmt.Sprintf("something answers on %v/udp but opens no session", w.addr))
		}
		return &Problem{Code: NoAnswer, Text: fmt.Sprintf("%s did not answer on %v/udp", w.waypoint, w.addr), Fix: fmt.Sprintf("is its agent running, does a firewall block UDP %d?", w.addr.Port())}
	case errors.Is(err, net.ErrClosed):
		return &Problem{Code: Lost, Text: "the session with " + w.waypoint + " ended"}
	}
	return &Problem{Code: OtherProblem, Text: fmt.Sprintf("the session with %s at %v failed (%v)", w.waypoint, w.addr, err)}
}

// inTime rewords TLS's error about a certificate's validity to include both times.
func inTime(err error) error {
	if clock, ok := collective.AsClockError(err, time.Now()); ok {
		return clock
	}
	return err
}

func nonsense(w where, text string) *Problem {
	return &Problem{Code: Nonsense, Text: text, Fix: fmt.Sprintf("check that a dcol waypoint listens on UDP %d there, and that datagrams of 1200 bytes get through", w.addr.Port())}
}

func errnoText(err error, errno syscall.Errno) string {
	if errno != 0 {
		return errno.Error()
	}
	return err.Error()
}

// byWaypoint explains a close with one of our codes.
func byWaypoint(w where, app *quic.ApplicationError) *Problem {
	switch app.ErrorCode {
	case closeDone, closeStopping:
		return &Problem{Code: Stopping, Text: "the agent of " + w.waypoint + " was stopped", Fix: "nothing to do, it will be used when it is back"}
	case closeRevoked:
		return &Problem{Code: Revoked, Text: fmt.Sprintf("%s says that our certificate was revoked", w.waypoint), Fix: "ask the collective's authority why"}
	case closeExpired:
		return &Problem{Code: OwnIdentity, Text: fmt.Sprintf("%s says that our certificate has expired", w.waypoint), Fix: "have it replaced (dcol ca issue --reissue); if it is still valid, the clock of one of the two hosts is wrong"}
	case closeNewer:
		return &Problem{Code: Displaced, Text: w.waypoint + " ended this session for newer ones of ours", Fix: "do more hosts than it allows use this certificate? Issue one for each"}
	case closeVersion:
		return &Problem{Code: OtherVersion, Text: fmt.Sprintf("%s speaks another version of dcol (%q)", w.waypoint, app.ErrorMessage), Fix: "update the older of the two agents"}
	case closeNotMember:
		return &Problem{Code: RefusedUs, Text: fmt.Sprintf("%s does not accept our certificate (%q)", w.waypoint, app.ErrorMessage), Fix: "have it issued by the collective's authority"}
	case closeUnattested:
		return unattested(w, app)
	case closeSilent, closeSlow:
		return &Problem{Code: Lost, Text: fmt.Sprintf("%s did not hear from us in time", w.waypoint), Fix: "is the network between you overloaded?"}
	}
	return nonsense(w, fmt.Sprintf("%s at %v ended the session (code %d, %q)", w.waypoint, w.addr, app.ErrorCode, app.ErrorMessage))
}

// byAlert explains an error that the other side's QUIC or TLS sent.
func byAlert(w where, e *quic.TransportError) *Problem {
	refused := func(text, fix string) *Problem {
		return &Problem{Code: RefusedUs, Text: w.waypoint + " does not accept our certificate: " + text, Fix: fix}
	}
	switch e.ErrorCode {
	case alertCertificateExpired:
		return refused("it considers it expired or not yet valid", "compare the clocks of the two hosts; else have it replaced (dcol ca issue --reissue)")
	case alertUnknownCA, alertCertificateUnknown:
		p := refused("it belongs to another collective", "both need certificates of the same authority, and its ca.crt")
		p.Code = OtherCA
		return p
	case alertCertificateRevoked:
		return refused("it was revoked", "ask the collective's authority why")
	case alertBadCertificate, alertAccessDenied, alertCertificateNeeded:
		return refused("it considers it invalid", "have it issued by the collective's authority (dcol ca issue)")
	case alertNoALPN, alertProtocolVersion:
		return &Problem{Code: OtherVersion, Text: fmt.Sprintf("%s at %v does not speak %s", w.waypoint, w.addr, alpn), Fix: "update the older of the two agents, or correct the address: something else may listen there"}
	case quic.ConnectionRefused:
		return &Problem{Code: Stopping, Text: w.waypoint + " accepts no sessions now", Fix: "is its agent stopping or overloaded?"}
	}
	return nonsense(w, fmt.Sprintf("%s at %v ended the session (%v)", w.waypoint, w.addr, e))
}
