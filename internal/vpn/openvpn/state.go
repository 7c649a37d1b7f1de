package openvpn

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Phase is the phase of a client's connection.
type Phase string

// The phases.
const (
	Connecting   Phase = "connecting"   // for the first time
	Connected    Phase = "connected"    // the tunnel carries packets
	Reconnecting Phase = "reconnecting" // OpenVPN tries again by itself
	Failed       Phase = "failed"       // OpenVPN has ended and will be started again
)

// State describes a client's tunnel.
type State struct {
	Phase  Phase
	Since  time.Time // start of Phase
	Reason string    // why it is not Connected; may be empty
	// Received and Sent count packets' bytes in the tunnel since the last connection. They are some
	// seconds old.
	Received, Sent uint64
}

// Connected reports whether the tunnel carries packets.
func (s State) Connected() bool { return s.Phase == Connected }

// String describes the state.
func (s State) String() string {
	if s.Reason == "" {
		return string(s.Phase)
	}
	return string(s.Phase) + ": " + s.Reason
}

// tracker derives a State from openvpn's messages. The caller provides the time.
type tracker struct {
	state   State
	remote  netip.AddrPort
	problem string // the most specific problem of this attempt in the log
	refusal string // the server's reason for a refusal
}

func newTracker(remote netip.AddrPort, now time.Time) *tracker {
	return &tracker{remote: remote, state: State{Phase: Connecting, Since: now}}
}

// line processes a line of the log. The first line about a problem is kept, because later ones are
// consequences, except that a line from the verification of a certificate replaces it.
func (t *tracker) line(l logLine) {
	if l.problem() && (t.problem == "" || verdict.MatchString(l.text) && !verdict.MatchString(t.problem)) {
		t.problem = l.text
	}
}

// notice processes a notice, and reports whether phase or reason have changed.
func (t *tracker) notice(n notice, now time.Time) bool {
	before := t.state
	switch n.kind {
	case "LOG":
		if l, ok := parseLogNotice(n.text); ok {
			t.line(l)
		}
	case "BYTECOUNT":
		if received, sent, ok := parseByteCount(n.text); ok {
			t.state.Received, t.state.Sent = received, sent
		}
	case "PASSWORD":
		if reason, ok := parseRefusal(n.text); ok {
			t.refusal = reason
		}
	case "STATE":
		if s, ok := parseState(n.text); ok {
			t.step(s, now)
		}
	}
	return before.Phase != t.state.Phase || before.Reason != t.state.Reason
}

func (t *tracker) step(s stateNotice, now time.Time) {
	switch s.name {
	case "CONNECTED":
		t.problem, t.refusal = "", ""
		t.enter(Connected, "", now)
		t.state.Received, t.state.Sent = 0, 0
	case "RECONNECTING":
		t.enter(Reconnecting, t.why(s.detail), now)
		t.problem = ""
	case "EXITING":
		// down sets the reason.
	default: // steps of an attempt
		if t.state.Phase == Failed {
			t.enter(Reconnecting, t.state.Reason, now)
		}
	}
}

// down records the end of openvpn.
func (t *tracker) down(err error, retry time.Duration, now time.Time) {
	reason := err.Error()
	if t.refusal != "" {
		reason = "the server refuses this member: " + t.refusal
	} else if exit := (*ExitError)(nil); errors.As(err, &exit) && exit.Words != "" {
		reason = exit.Words
	}
	t.problem, t.refusal = "", ""
	t.enter(Failed, fmt.Sprintf("%s (next try in %v)", reason, retry), now)
}

// moved records a new address of the server.
func (t *tracker) moved(remote netip.AddrPort, now time.Time) {
	t.remote, t.problem = remote, ""
	t.enter(Reconnecting, fmt.Sprintf("the server is now at %v", remote), now)
}

func (t *tracker) enter(p Phase, reason string, now time.Time) {
	if t.state.Phase != p {
		t.state.Since = now
	}
	t.state.Phase, t.state.Reason = p, reason
}

// why describes the signal that made openvpn reconnect.
func (t *tracker) why(signal string) string {
	switch {
	case t.state.Phase == Connected && signal == "ping-restart":
		return fmt.Sprintf("no packet from %v for %d s", t.remote, clientPatience)
	case signal == "ping-restart", signal == "tls-error" && strings.HasPrefix(t.problem, "TLS Error: TLS key negotiation failed"):
		return fmt.Sprintf("no TLS handshake with %v within %d s: its UDP port is not reachable, or it refuses our certificate", t.remote, clientPatience)
	case signal == "tls-error":
		return fmt.Sprintf("TLS handshake with %v failed: %s", t.remote, t.problem)
	case t.problem != "":
		return signal + ": " + t.problem
	}
	return signal
}
