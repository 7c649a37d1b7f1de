package openvpn

import (
	"errors"
	"net/netip"
	"testing"
)

// What a client's openvpn says, and what that means to the one who asks for its state.
func TestAttempt(t *testing.T) {
	const (
		connected = "1 Initialization Sequence Completed"
		keyError  = "20 TLS Error: TLS key negotiation failed to occur within 12 seconds (check your network connectivity)"
		tlsFails  = "20 TLS Error: TLS handshake failed"
	)
	restarts := func(signal string) string { return "1 SIGUSR1[soft," + signal + "] received, process restarting" }
	for name, test := range map[string]struct {
		said []string
		want State
	}{
		"begins":   {nil, State{}},
		"connects": {[]string{"1 UDPv4 link remote: [AF_INET]192.0.2.1:1194", connected}, State{Connected: true}},
		"unreachable": {[]string{keyError, restarts("tls-error")},
			State{Reason: "no TLS handshake with 192.0.2.1:1194 within 12 s: its UDP port is not reachable, or it refuses our certificate"}},
		"wrong certificate": {[]string{"20 OpenSSL: error", "20 VERIFY ERROR: depth=0", tlsFails, restarts("tls-error")},
			State{Reason: "TLS handshake with 192.0.2.1:1194 failed: VERIFY ERROR: depth=0"}},
		"falls silent": {[]string{connected, restarts("ping-restart")}, State{Reason: "no packet from 192.0.2.1:1194 for 12 s"}},
		"the reason stays while it tries": {[]string{connected, restarts("ping-restart"), "1 UDPv4 link remote: [AF_INET]192.0.2.1:1194"},
			State{Reason: "no packet from 192.0.2.1:1194 for 12 s"}},
		"comes back":   {[]string{keyError, restarts("tls-error"), connected}, State{Connected: true}},
		"other signal": {[]string{restarts("connection-reset")}, State{Reason: "connection-reset"}},
		"with a problem": {[]string{connected, "20 the disk is full", restarts("connection-reset")},
			State{Reason: "connection-reset: the disk is full"}},
		"an old problem": {[]string{"20 the disk is full", connected, restarts("connection-reset")}, State{Reason: "connection-reset"}},
		"of others":      {[]string{"1 alice/192.0.2.2:5000 SIGUSR1[soft,tls-error] received, client-instance restarting"}, State{}},
	} {
		a := attempt{remote: netip.MustParseAddrPort("192.0.2.1:1194")}
		for _, text := range test.said {
			a.hear(parseLog("1795235904.199510 " + text))
		}
		if a.State != test.want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, a.State, test.want)
		}
	}
}

func TestAttemptEnds(t *testing.T) {
	died := errors.New("it died")
	for said, want := range map[string]string{
		"Closing TUN/TAP interface":                                "it died",
		"AUTH: Received control message: AUTH_FAILED,not admitted": "the server refuses this member: not admitted",
		"AUTH: Received control message: AUTH_FAILED":              "the server refuses this member: no reason given",
	} {
		var a attempt
		a.hear(logLine{text: said})
		if got := a.ended(died); got.Error() != want {
			t.Errorf("%s: %q, want %q", said, got, want)
		}
	}
}

// The reason that counts for the end of openvpn is what it says last of what it cannot go on with.
func TestReason(t *testing.T) {
	for name, test := range map[string]struct {
		said []string
		want string
	}{
		"nothing": {[]string{"1 OpenVPN 2.6.14"}, "openvpn ended: exit status 1"},
		"options": {[]string{"10 Options error: no CA", "10 Options error: Please correct these errors"}, "openvpn ended: no CA (exit status 1)"},
		"fatal":   {[]string{"20 odd", "10 Cannot open TUN", "10 Exiting due to fatal error"}, "openvpn ended: Cannot open TUN (exit status 1)"},
		"problem": {[]string{"20 odd", "40 odder"}, "openvpn ended: odder (exit status 1)"},
	} {
		var r reason
		for _, text := range test.said {
			r.hear(parseLog("1795235904.199510 " + text))
		}
		if got := r.ended(errors.New("exit status 1")); got.Error() != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
