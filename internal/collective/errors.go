package collective

import (
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Error is a fault in the identity's or the authority's files: which one, what is wrong, how to mend it.
type Error struct {
	File    string
	Problem string
	Mend    string
	Err     error // the cause; may be nil
}

func (e *Error) Error() string {
	s := e.File + ": " + e.Problem
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Mend != "" {
		s += "; " + e.Mend
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// forJoined is a fault of a member's files with the mend for a host that joined a collective: it got them
// from a coordinator, and nobody has copies for it.
func forJoined(err error) error {
	fault, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	joined := *fault
	joined.Mend = "restore it from a backup; or move the configuration away and join again with a new invitation (dcol invite): " +
		"with the same key, the host may keep its name"
	return &joined
}

// Kinds of fault, for errors.Is.
var (
	ErrExpired     = errors.New("certificate has expired")
	ErrNotYetValid = errors.New("certificate is not valid yet")
	ErrOtherCA     = errors.New("certificate is not of this collective")
	ErrKeyMismatch = errors.New("key does not belong to the certificate")
	ErrExists      = errors.New("exists already")
	ErrNotEndorsed = errors.New("not signed by a known root")
	ErrNotIssued   = errors.New("has issued no valid certificate of that name or serial number")
)

// RevokedError says that a certificate is on a revocation list of the collective's, or its signer's is.
type RevokedError struct {
	Name   string
	Serial string
	Signer string // serial number of the signer's certificate, if that is what was revoked
	At     time.Time
}

func (e *RevokedError) Error() string {
	if e.Signer != "" {
		return fmt.Sprintf("the signer of the certificate of %s (serial %s) was revoked on %s", e.Name, e.Serial, e.At.UTC().Format(time.DateOnly))
	}
	return fmt.Sprintf("the certificate of %s (serial %s) was revoked on %s", e.Name, e.Serial, e.At.UTC().Format(time.DateOnly))
}

// serialText is how serial numbers are written everywhere: in file names, logs and commands.
func serialText(n *big.Int) string { return fmt.Sprintf("%032x", n) }
