package emulink

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// memoryLimit is where the garbage collector comes on after all: only control
// requests leave garbage, so that is never in practice.
const memoryLimit = 1 << 30

// settle prepares the process for running undisturbed.
func settle() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	// Pages stay once they were used. Not permitted to everyone, and without
	// memory pressure it makes no difference.
	_ = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
}

// realtime makes the calling thread run before others, as far as permitted,
// and says how far. SCHED_FIFO is refused in control groups without real-time
// budget (CONFIG_RT_GROUP_SCHED).
func realtime() string {
	// Timers of threads that are not real-time fire up to 50 µs late if not
	// told otherwise.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	err := unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1,
	}, 0)
	if err == nil {
		return "SCHED_FIFO"
	}
	const nice = -20
	if niceErr := unix.Setpriority(unix.PRIO_PROCESS, 0, nice); niceErr == nil {
		return fmt.Sprintf("nice %d (SCHED_FIFO: %v)", nice, err)
	}
	return fmt.Sprintf("ordinary (SCHED_FIFO: %v)", err)
}
