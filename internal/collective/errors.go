package collective

import (
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Error is a problem with a file of an identity or an authority, and how to fix it.
type Error struct {
	File    string
	Problem string
	Fix     string
	Err     error // the cause; may be nil
}

func (e *Error) Error() string {
	s := e.File + ": " + e.Problem
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// forJoined returns err with the advice for a host that joined a collective: its files came from a
// coordinator, and nobody has copies of them.
func forJoined(err error) error {
	fault, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	joined := *fault
	joined.Fix = "restore it from a backup; or move the configuration away and join again with a new invitation (dcol invite): " +
		"with the same key, the host may keep its name"
	return &joined
}

// Kinds of problems, for errors.Is.
var (
	ErrExpired     = errors.New("certificate has expired")
	ErrNotYetValid = errors.New("certificate is not valid yet")
	ErrOtherCA     = errors.New("certificate is not of this collective")
	ErrKeyMismatch = errors.New("key does not belong to the certificate")
	ErrExists      = errors.New("exists already")
	ErrNotEndorsed = errors.New("not signed by a known root")
	ErrNotIssued   = errors.New("has issued no valid certificate of that name or serial number")
)

// RevokedError reports that a certificate, or its signer's, is on a revocation list of the collective.
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

// serialText formats a serial number for file names, logs and commands.
func serialText(n *big.Int) string { return fmt.Sprintf("%032x", n) }
