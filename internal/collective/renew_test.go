package collective

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRenewAt(t *testing.T) {
	begin := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	end := begin.Add(MemberValidity)
	for _, test := range []struct {
		spread float64
		want   time.Duration
	}{{0, 24 * time.Hour}, {0.5, 36 * time.Hour}, {1, 48 * time.Hour}} {
		if got := RenewAt(begin, end, test.spread).Sub(begin); got != test.want {
			t.Errorf("spread %v: after %v, want %v", test.spread, got, test.want)
		}
	}
}

// If a coordinator comes back at any time before the end, even for two hours only, every member asks it in that
// time. While it is away, no member asks more than a few dozen times a day.
func TestRetriesMeetTheCoordinator(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
		life := time.Duration(rapid.Int64Range(int64(time.Hour), int64(30*24*time.Hour)).Draw(t, "life"))
		end := begin.Add(life)
		spread := rapid.Float64Range(0, 1).Draw(t, "spread")
		back := begin.Add(time.Duration(rapid.Float64Range(0, 0.8).Draw(t, "back") * float64(life)))
		now := RenewAt(begin, end, spread)
		if now.Before(begin.Add(life/7-time.Second)) || now.After(begin.Add(2*life/7+time.Second)) {
			t.Fatalf("first try after %v of %v", now.Sub(begin), life)
		}
		tries, first := 0, now
		for now.Before(back) {
			tries++
			next := RetryAt(end, now, tries, rapid.Float64Range(0, 1).Draw(t, "again"))
			if wait := next.Sub(now); wait < quickestRetry || wait > longestRetry {
				t.Fatalf("try %d waits %v", tries, wait)
			}
			now = next
		}
		if first.Before(back) && now.Sub(back) > min(longestRetry, life/7) || !now.Before(end) {
			t.Fatalf("the coordinator is back after %v of %v, asked after %v", back.Sub(begin), life, now.Sub(begin))
		}
		if first.Before(back) && life > 48*time.Hour {
			if days := back.Sub(first).Hours()/24 + 1; float64(tries) > 60*days {
				t.Fatalf("%d tries in %.1f days", tries, days)
			}
		}
	})
	now := time.Now()
	for failures := range 100 {
		if wait := RetryAt(now.Add(-time.Hour), now, failures, 1).Sub(now); wait < quickestRetry || wait > longestRetry {
			t.Errorf("after the end, %d failures: %v", failures, wait)
		}
	}
}

func TestAsClockError(t *testing.T) {
	ca := newCA(t)
	now := time.Now()
	invalid := &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Cert: ca.cert, Reason: x509.Expired}}
	clock, ok := AsClockError(fmt.Errorf("handshake: %w", invalid), now.Add(-24*time.Hour))
	if !ok || !errors.Is(clock, ErrNotYetValid) || !strings.Contains(clock.Error(), "23h54m earlier") && !strings.Contains(clock.Error(), "23h55m earlier") {
		t.Errorf("a clock a day behind: %v", clock)
	}
	if clock, ok := AsClockError(invalid, now); ok {
		t.Errorf("valid now: %v", clock)
	}
	for _, err := range []error{nil, errors.New("other"), x509.CertificateInvalidError{Cert: ca.cert, Reason: x509.TooManyIntermediates}} {
		if clock, ok := AsClockError(err, now); ok {
			t.Errorf("%v: %v", err, clock)
		}
	}
}
