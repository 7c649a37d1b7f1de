package emulink

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// memoryLimit is the heap size at which garbage is collected nevertheless. Only control requests allocate, so the heap
// never gets so large in practice.
const memoryLimit = 1 << 30

// settle prepares the process to run without interruptions.
func settle() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	// Keep pages in memory once they were used. Not everyone may do so, and it makes no difference without
	// memory pressure.
	_ = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
}

// realtime gives the calling thread priority over others, as far as permitted, and returns the result as
// text. SCHED_FIFO is refused in control groups without a real-time budget (CONFIG_RT_GROUP_SCHED).
func realtime() string {
	// By default, timers of threads that are not real-time fire up to 50 µs late.
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
