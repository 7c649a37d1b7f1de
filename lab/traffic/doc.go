// Package traffic generates application-limited traffic and measures its latency: messages at a fixed
// interval, or requests with answers, over one TCP connection. `dcol-lab part` runs its two ends on the
// hosts of a lab. lab/experiment starts them and reads the Report. It is an ordinary TCP program, independent
// of MPTCP and dcol.
//
// Messages have no timestamps. The n-th message is due n intervals after the start that its sender announced.
// Both ends are on one machine and read the same clock. So every delay counts, including that of a late
// sender (there is no coordinated omission).
package traffic

import (
	"time"

	"golang.org/x/sys/unix"
)

// RequestSize is the length of a request in bytes, about that of a browser's GET.
const RequestSize = 300

// Patience limits the wait for the last message or answer after it was due.
const Patience = 20 * time.Second

// now reads the machine's monotonic clock, which is the same in every process.
func now() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano()), err
}
