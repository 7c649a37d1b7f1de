// Package traffic makes application-limited traffic and measures what it is like to
// wait for it: messages at a fixed interval, and requests with their answers, over
// one TCP connection. `dcol-lab traffic` runs its two ends on the hosts of a lab;
// lab/experiment starts those and reads the Report. It is an ordinary TCP program:
// it knows nothing of MPTCP or of dcol.
//
// A message has no stamp on it. The n-th is due n intervals after the start that its
// sender announced, and both ends read the same clock, as they are on one machine. So
// whatever held it up counts, a sender that came late included (what is called
// coordinated omission does not happen).
package traffic

import (
	"time"

	"golang.org/x/sys/unix"
)

// RequestSize is the length of a request in bytes: about that of a browser's GET.
const RequestSize = 300

// Patience is how long after the last message or request was due the program waits
// for it.
const Patience = 20 * time.Second

// now returns the machine's monotonic clock, which is the same in every process.
func now() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano()), err
}
