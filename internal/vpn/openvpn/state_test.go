package openvpn

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// What a client's openvpn says, and what that means to the one who asks for its state.
func TestTracker(t *testing.T) {
	const (
		keyError = "LOG:0,N,TLS Error: TLS key negotiation failed to occur within 12 seconds (check your network connectivity)"
		tlsFails = "LOG:0,N,TLS Error: TLS handshake failed"
	)
	state := func(text string) string { return "STATE:0," + text + ",,,,," }
	for name, test := range map[string]struct {
		said []string // or "down" with the error after a blank
		want string
	}{
		"begins":   {nil, "connecting"},
		"connects": {[]string{state("WAIT,"), state("AUTH,"), state("CONNECTED,SUCCESS")}, "connected"},
		"unreachable": {[]string{state("WAIT,"), keyError, state("RECONNECTING,tls-error")},
			"reconnecting: no TLS handshake with 192.0.2.1:1194 within 12 s: its UDP port is not reachable, or it refuses our certificate"},
		"wrong certificate": {[]string{"LOG:0,N,OpenSSL: error", "LOG:0,N,VERIFY ERROR: depth=0", tlsFails, state("RECONNECTING,tls-error")},
			"reconnecting: TLS handshake with 192.0.2.1:1194 failed: VERIFY ERROR: depth=0"},
		"falls silent": {[]string{state("CONNECTED,SUCCESS"), state("RECONNECTING,ping-restart")},
			"reconnecting: no packet from 192.0.2.1:1194 for 12 s"},
		"the reason stays while it tries": {[]string{state("CONNECTED,SUCCESS"), state("RECONNECTING,ping-restart"), state("WAIT,"), state("AUTH,")},
			"reconnecting: no packet from 192.0.2.1:1194 for 12 s"},
		"comes back": {[]string{keyError, state("RECONNECTING,tls-error"), state("CONNECTED,SUCCESS")}, "connected"},
		"is refused": {[]string{"PASSWORD:Verification Failed: 'Auth' ['not admitted']", state("EXITING,auth-failure"), "down it died"},
			"failed: the server refuses this member: not admitted (next try in 1s)"},
		"dies": {[]string{state("CONNECTED,SUCCESS"), "down it died"}, "failed: it died (next try in 1s)"},
		"dies and tries again": {[]string{"down it died", state("WAIT,")},
			"reconnecting: it died (next try in 1s)"},
		"other signal":    {[]string{state("RECONNECTING,connection-reset")}, "reconnecting: connection-reset"},
		"nothing of ours": {[]string{"INFO:hello", "HOLD:waiting", "STATE:", "LOG:x", "BYTECOUNT:x"}, "connecting"},
	} {
		now := time.Unix(1000, 0)
		tr := newTracker(netip.MustParseAddrPort("192.0.2.1:1194"), now)
		for _, text := range test.said {
			now = now.Add(time.Second)
			if why, ok := strings.CutPrefix(text, "down "); ok {
				tr.down(errors.New(why), time.Second, now)
				continue
			}
			kind, rest, _ := strings.Cut(text, ":")
			before := tr.state.String()
			if told := tr.notice(notice{kind, rest}, now); told != (before != tr.state.String()) {
				t.Errorf("%s: %q: news %t, from %q to %q", name, text, told, before, tr.state)
			}
		}
		if got := tr.state.String(); got != test.want {
			t.Errorf("%s:\n got %q\nwant %q", name, got, test.want)
		}
	}
}

func TestTrackerCounts(t *testing.T) {
	began := time.Unix(1000, 0)
	tr := newTracker(netip.MustParseAddrPort("192.0.2.1:1194"), began)
	later := began.Add(time.Minute)
	tr.notice(notice{"STATE", "0,CONNECTED,SUCCESS"}, later)
	if tr.notice(notice{"BYTECOUNT", "12,34"}, later.Add(time.Second)) {
		t.Error("bytes are news")
	}
	want := State{Phase: Connected, Since: later, Received: 12, Sent: 34}
	if tr.state != want || !tr.state.Connected() {
		t.Errorf("got %+v, want %+v", tr.state, want)
	}
	tr.moved(netip.MustParseAddrPort("192.0.2.9:1194"), later)
	if tr.state.Phase != Reconnecting || tr.state.Connected() || !strings.Contains(tr.state.Reason, "192.0.2.9:1194") {
		t.Errorf("after a move: %+v", tr.state)
	}
}
