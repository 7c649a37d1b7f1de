package experiment

import "errors"

// dcolError is a failure of dcol's: its agent did not come up or ended by itself, or
// what it carries ended badly or not at all. Such a run is not tried again, as it
// would be with a failure of the lab's or the machine's: it counts.
type dcolError struct{ err error }

func (e *dcolError) Error() string { return e.err.Error() }
func (e *dcolError) Unwrap() error { return e.err }

// dcols says of an error, if it is one, that it is dcol's.
func dcols(err error) error {
	if err == nil {
		return nil
	}
	return &dcolError{err}
}

// isDCols reports whether dcol failed. What arrives corrupt ends an experiment,
// whoever did it.
func isDCols(err error) bool {
	_, ok := errors.AsType[*dcolError](err)
	return ok && !errors.Is(err, ErrCorrupt)
}
