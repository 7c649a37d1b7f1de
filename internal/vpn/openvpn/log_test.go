package openvpn

import (
	"log/slog"
	"testing"
)

func TestParseLog(t *testing.T) {
	for line, want := range map[string]struct {
		text  string
		level slog.Level
	}{
		"1795235904.199510 1 OpenVPN 2.6.14 x86_64": {"OpenVPN 2.6.14 x86_64", slog.LevelDebug},
		"1795235904.199510 20 UDP: no buffers":      {"UDP: no buffers", slog.LevelWarn},
		"1795235904.199510 40 WARNING: odd":         {"WARNING: odd", slog.LevelWarn},
		"1795235904.199510 110 Cannot open TUN":     {"Cannot open TUN", slog.LevelError},
		"1795235904.199510 46000083 MANAGEMENT: x":  {"MANAGEMENT: x", slog.LevelDebug},
		// What dcol means to do, and what strangers can cause.
		"1795235904.199510 40 ******* WARNING *******: '--cipher none' was specified.": {"******* WARNING *******: '--cipher none' was specified.", slog.LevelDebug},
		"1795235904.199510 20 192.0.2.2:58183 TLS Error: TLS handshake failed":         {"192.0.2.2:58183 TLS Error: TLS handshake failed", slog.LevelDebug},
		"1795235904.199510 20 alice/192.0.2.2:58183 TLS Error":                         {"alice/192.0.2.2:58183 TLS Error", slog.LevelDebug},
		"1795235904.199510 20 2001:db8::2:58183 TLS Error":                             {"2001:db8::2:58183 TLS Error", slog.LevelDebug},
		// Logged as if it were nothing, and an error all the same.
		"1795235904.199510 1 VERIFY X509NAME ERROR: CN=bob, must be carol": {"VERIFY X509NAME ERROR: CN=bob, must be carol", slog.LevelWarn},
		"1795235904.199510 20 VERIFY ERROR: depth=0, certificate revoked":  {"VERIFY ERROR: depth=0, certificate revoked", slog.LevelWarn},
		// Not of the form.
		"openvpn: error while loading shared libraries": {"openvpn: error while loading shared libraries", slog.LevelWarn},
		"1.2":      {"1.2", slog.LevelWarn},
		"1.2 zz x": {"1.2 zz x", slog.LevelWarn},
	} {
		l := parseLog(line)
		if l.text != want.text || l.level() != want.level {
			t.Errorf("%q: %q at %v, want %q at %v", line, l.text, l.level(), want.text, want.level)
		}
	}
}

func FuzzParseLog(f *testing.F) {
	f.Add("1795235904.199510 40 WARNING: odd")
	f.Add("1795235904.199510 1 SIGUSR1[soft,tls-error] received, process restarting")
	f.Fuzz(func(t *testing.T, line string) {
		l := parseLog(line)
		if l.level() > slog.LevelDebug && !l.problem() {
			t.Errorf("%q is no problem and logged as %v", line, l.level())
		}
		var a attempt
		if a.hear(l); a.Connected && a.Reason != "" {
			t.Errorf("%q: connected, and not because %q", line, a.Reason)
		}
	})
}
