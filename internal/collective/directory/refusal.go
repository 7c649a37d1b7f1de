package directory

import (
	"errors"
	"fmt"

	"github.com/detour-collective/dcol/internal/collective"
)

// Reason is why a record is not taken. It is a word for counts and logs.
type Reason string

// The reasons.
const (
	Malformed        Reason = "malformed"
	TooLarge         Reason = "too-large"
	BadSignature     Reason = "bad-signature"
	Foreign          Reason = "foreign-certificate" // of no authority of this collective, or of no member
	Ended            Reason = "certificate-ended"
	Revoked          Reason = "certificate-revoked"
	OtherName        Reason = "other-name" // than its certificate has
	OtherCollective  Reason = "other-collective"
	OtherSubnet      Reason = "other-subnet" // than its certificate has
	Expired          Reason = "expired"
	NotYet           Reason = "not-yet-valid"
	Older            Reason = "older"
	SubnetTaken      Reason = "subnet-taken"
	KeyTaken         Reason = "key-taken"
	Full             Reason = "directory-full"
	MalformedMessage Reason = "malformed-message" // nothing of it could be read
)

// Refusal is why a record is not taken, with whose it says it is: that is not proven. As an error it is
// its Reason's, so that errors.Is(err, directory.Older) holds.
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

// Error makes a reason a target of errors.Is.
func (r Reason) Error() string { return string(r) }

func refuse(reason Reason, name, format string, args ...any) error {
	return &Refusal{Reason: reason, Name: name, Err: fmt.Errorf(format, args...)}
}

// reasonOf sorts what Trust says of a certificate.
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
