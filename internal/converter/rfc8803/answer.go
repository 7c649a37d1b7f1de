package rfc8803

import (
	"errors"
	"slices"
	"syscall"
)

// Answer holds the other side's answer to a Connect TLV.
type Answer struct {
	ExtendedHeader []byte // nil: there is none
	Error          *Error // nil: there is none
}

// Hear reads the answer at the start of b. It is used as an engine.Dial's Await. used is the answer's length once the
// answer is complete. errno is EPROTO if the other side does not serve the connection, or speaks another protocol.
func (a *Answer) Hear(b []byte) (used int, done bool, errno syscall.Errno) {
	m, n, err := Decode(b)
	var unknown UnknownError
	switch {
	case errors.Is(err, ErrShort):
		return 0, false, 0
	case err != nil && !errors.As(err, &unknown):
		return 0, false, syscall.EPROTO
	}
	a.ExtendedHeader = slices.Clone(m.ExtendedHeader)
	if e := m.Error; e != nil {
		a.Error = &Error{Code: e.Code, Value: slices.Clone(e.Value)}
		return n, false, syscall.EPROTO
	}
	return n, true, 0
}
