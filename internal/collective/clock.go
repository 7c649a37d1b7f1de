package collective

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ClockError reports that a certificate is not valid at a host's time. Either the certificate has expired or
// the clock is wrong. If the certificate is not valid yet, the clock is wrong.
type ClockError struct {
	Subject   string // whose certificate
	Now       time.Time
	NotBefore time.Time
	NotAfter  time.Time
}

// CheckTime returns a *ClockError if the certificate is not valid at the time.
func CheckTime(cert *x509.Certificate, now time.Time) error {
	if !now.Before(cert.NotBefore) && !now.After(cert.NotAfter) {
		return nil
	}
	return &ClockError{Subject: cert.Subject.CommonName, Now: now, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter}
}

// AsClockError returns the *ClockError in err. If err is that of a TLS handshake that failed because a certificate is
// not valid now, it makes a *ClockError of it. now is this host's time.
func AsClockError(err error, now time.Time) (*ClockError, bool) {
	if own, ok := errors.AsType[*ClockError](err); ok {
		return own, true
	}
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	if !ok || invalid.Reason != x509.Expired {
		return nil, false
	}
	return errors.AsType[*ClockError](CheckTime(invalid.Cert, now))
}

// Off returns the clock's distance from the certificate's validity, negative if the clock is before it. If the
// clock is wrong, it is wrong by at least this much.
func (e *ClockError) Off() time.Duration {
	if e.Now.Before(e.NotBefore) {
		return e.Now.Sub(e.NotBefore)
	}
	return e.Now.Sub(e.NotAfter)
}

func (e *ClockError) Error() string {
	if e.Off() < 0 {
		return fmt.Sprintf("the certificate of %s is valid from %s, but this host's clock says %s, %s earlier: the clock is behind",
			e.Subject, stamp(e.NotBefore), stamp(e.Now), span(-e.Off()))
	}
	return fmt.Sprintf("the certificate of %s expired on %s; this host's clock says %s, %s later",
		e.Subject, stamp(e.NotAfter), stamp(e.Now), span(e.Off()))
}

// Is makes e match ErrExpired or ErrNotYetValid.
func (e *ClockError) Is(target error) bool {
	if e.Off() < 0 {
		return target == ErrNotYetValid
	}
	return target == ErrExpired
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// span formats a duration as days and hours, or hours and minutes.
func span(d time.Duration) string {
	day := 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.Round(time.Second).String()
}
