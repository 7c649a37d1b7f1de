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

// tracker turns what openvpn says into a State. It is told the time.
type tracker struct {
	state   State
	remote  netip.AddrPort
	problem string // the last line about one, since the last attempt
	refusal string // what the server gave as its reason
}

func newTracker(remote netip.AddrPort, now time.Time) *tracker {
	return &tracker{remote: remote, state: State{Phase: Connecting, Since: now}}
}

// line takes a line of the log.
func (t *tracker) line(l logLine) {
	if l.problem() {
		t.problem = l.text
	}
}

// notice takes a notice, and tells whether phase or reason have changed.
func (t *tracker) notice(n notice, now time.Time) bool {
	before := t.state
	switch n.kind {
	case "BYTECOUNT":
		if received, sent, ok := parseByteCount(n.text); ok {
			t.state.Received, t.state.Sent = received, sent
		}
	case "PASSWORD":
		if text, ok := strings.CutPrefix(n.text, "Verification Failed: "); ok {
			t.refusal = strings.Trim(text, "'")
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
	switch signal {
	case "ping-restart":
		return fmt.Sprintf("no packet from %v for %d s", t.remote, clientPatience)
	case "tls-error":
		if t.problem != "" && !strings.HasPrefix(t.problem, "TLS Error: TLS key negotiation failed") {
			return fmt.Sprintf("TLS handshake with %v failed: %s", t.remote, t.problem)
		}
		return fmt.Sprintf("no TLS handshake with %v within %d s: is its UDP port reachable, and are we admitted there?", t.remote, handshakeTime)
	case "connection-reset", "server-pushed-connection-reset":
		return fmt.Sprintf("%v has ended the connection", t.remote)
	}
	if t.problem != "" {
		return signal + ": " + t.problem
	}
	return signal
}
