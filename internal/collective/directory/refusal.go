package directory

import (
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/collective"
)

// Reason is the reason for refusing a record, as a word for counts and logs.
type Reason string

// The reasons.
const (
	Malformed        Reason = "malformed"
	TooLarge         Reason = "too-large"
	BadSignature     Reason = "bad-signature"
	Foreign          Reason = "foreign-certificate" // not from an authority of this collective, or not a member's
	Ended            Reason = "certificate-ended"
	Revoked          Reason = "certificate-revoked"
	OtherName        Reason = "other-name" // differs from its certificate
	OtherCollective  Reason = "other-collective"
	OtherSubnet      Reason = "other-subnet" // differs from its certificate
	Expired          Reason = "expired"
	NotYet           Reason = "not-yet-valid"
	Older            Reason = "older"
	SubnetTaken      Reason = "subnet-taken"
	KeyTaken         Reason = "key-taken"
	Full             Reason = "directory-full"
	MalformedMessage Reason = "malformed-message" // it could not be decoded
)

// Refusal is the error of a refused record. Name is the name in the record, which is not proven. errors.Is matches its
// Reason, as in errors.Is(err, directory.Older).
type Refusal struct {
	Reason Reason
	Name   string
	Err    error // in words
}

func (r *Refusal) Error() string {
	if r.Name == "" {
		return fmt.Sprintf("record refused (%s): %v", r.Reason, r.Err)
	}
	return fmt.Sprintf("record of %s refused (%s): %v", r.Name, r.Reason, r.Err)
}

func (r *Refusal) Unwrap() []error { return []error{r.Reason, r.Err} }

// Error makes a Reason a target for errors.Is.
func (r Reason) Error() string { return string(r) }

func refuse(reason Reason, name, format string, args ...any) error {
	return &Refusal{Reason: reason, Name: name, Err: fmt.Errorf(format, args...)}
}

// reasonOf returns the reason for an error of Trust about a certificate.
func reasonOf(err error) Reason {
	if _, revoked := errors.AsType[*collective.RevokedError](err); revoked {
		return Revoked
	}
	switch {
	case errors.Is(err, collective.ErrExpired):
		return Ended
	case errors.Is(err, collective.ErrNotYetValid):
		return NotYet
	}
	return Foreign
}
