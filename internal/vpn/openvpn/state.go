package openvpn

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Phase is where a client stands.
type Phase string

// The phases.
const (
	Connecting   Phase = "connecting"   // for the first time
	Connected    Phase = "connected"    // the tunnel carries packets
	Reconnecting Phase = "reconnecting" // OpenVPN tries again by itself
	Failed       Phase = "failed"       // OpenVPN has ended; it is started again
)

// State is what is known of a client's tunnel.
type State struct {
	Phase  Phase
	Since  time.Time // of Phase
	Reason string    // why not Connected, in words; empty when nothing is wrong yet
	// Of packets in the tunnel, since it was last connected; some seconds old.
	Received, Sent uint64
}

// Connected tells whether the tunnel carries packets.
func (s State) Connected() bool { return s.Phase == Connected }

// String is the state in words.
func (s State) String() string {
	if s.Reason == "" {
		return string(s.Phase)
	}
	return string(s.Phase) + ": " + s.Reason
}

// tracker turns what openvpn says into a State. It is told the time.
type tracker struct {
	state   State
	remote  netip.AddrPort
	problem string // the line of this attempt that says best what is wrong
	refusal string // what the server gave as its reason
}

func newTracker(remote netip.AddrPort, now time.Time) *tracker {
	return &tracker{remote: remote, state: State{Phase: Connecting, Since: now}}
}

// line takes a line of the log. The first one about a problem names it, the next ones say what
// follows from it; but what is wrong with a certificate is said best where it is checked.
func (t *tracker) line(l logLine) {
	if l.problem() && (t.problem == "" || verdict.MatchString(l.text) && !verdict.MatchString(t.problem)) {
		t.problem = l.text
	}
}

// notice takes a notice, and tells whether phase or reason have changed.
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
		// down says more.
	default: // steps of an attempt
		if t.state.Phase == Failed {
			t.enter(Reconnecting, t.state.Reason, now)
		}
	}
}

// down takes the end of openvpn.
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

// moved takes a new address of the server.
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

// why words the signal that made openvpn start over.
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
