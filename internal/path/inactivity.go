package path

import (
	"fmt"
	"time"
)

// The kernel ends a connection that had no subflow for its inactivity timeout. But it begins to count anew whenever an attempt at
// a subflow fails. So attempts that go on, as after the end of the server, would keep a connection for good, and its
// program would wait. Therefore there are none after that time, and the connection ends within as long again.

// defaultInactivity is Linux' timeout.
const defaultInactivity = time.Minute

// noticeLoss records since when the connection has had no established subflow.
func (t turn) noticeLoss() {
	switch {
	case t.has(func(s *subflow) bool { return s.up }):
		t.lone = time.Time{}
	case t.lone.IsZero():
		t.lone = t.now
	}
}

// abandoned reports whether the connection had no subflow for so long that it is left to end.
func (t turn) abandoned(inactivity time.Duration) bool {
	return !t.lone.IsZero() && t.now.Sub(t.lone) >= inactivity
}

// describeAbandoned returns the reason for trying no more subflows.
func describeAbandoned(inactivity time.Duration) string {
	return fmt.Sprintf("it had no path for %v, so the kernel ends it", inactivity)
}
