package path

import "time"

// The kernel ends a connection that has had no subflow for its inactivity timeout. But it restarts the timeout
// whenever an attempt at a subflow fails. Attempts that go on, for example after the server died, would keep a
// connection for good, and its program would wait. So no subflow is tried after a connection has had none for the
// timeout, and the kernel ends it within another timeout.

// defaultInactivity is Linux's default timeout.
const defaultInactivity = time.Minute

// noticeLoss records when the connection lost its last established subflow.
func (t turn) noticeLoss() {
	switch {
	case t.has(func(s *subflow) bool { return s.up }):
		t.lone = time.Time{}
	case t.lone.IsZero():
		t.lone = t.now
	}
}

// abandoned reports whether the connection has had no established subflow for the inactivity timeout.
func (t turn) abandoned(inactivity time.Duration) bool {
	return !t.lone.IsZero() && t.now.Sub(t.lone) >= inactivity
}
