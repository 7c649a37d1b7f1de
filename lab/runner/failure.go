package runner

import "errors"

// ErrCorrupt reports a download that differs from the server's file. It ends an experiment.
var ErrCorrupt = errors.New("what arrived is not what was sent")

// dcolError is a failure of dcol: its agent did not start or exited, or a transfer through it failed. The run
// counts and is not repeated, unlike one that failed because of the lab or the machine.
type dcolError struct{ err error }

func (e *dcolError) Error() string { return e.err.Error() }
func (e *dcolError) Unwrap() error { return e.err }

// DColFailed marks an error as a failure of dcol.
func DColFailed(err error) error {
	if err == nil {
		return nil
	}
	return &dcolError{err}
}

// IsDColFailure reports whether dcol failed. Corrupt data ends an experiment, whatever its cause.
func IsDColFailure(err error) bool {
	_, ok := errors.AsType[*dcolError](err)
	return ok && !errors.Is(err, ErrCorrupt)
}
