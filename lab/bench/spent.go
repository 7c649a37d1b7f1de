package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// spent is the processor time so far of each process that works for a benchmark: this one, those it started,
// their children, and the kernel's threads. The sender of a packet, or the kernel's ksoftirqd, handles it
// between namespaces, so this includes all of a network's work. Of other programs it includes only what
// kernel threads do for them.
type spent map[int]time.Duration

// readSpent reads the clocks; those of this process last.
func readSpent() (spent, error) {
	parents, err := readParents()
	if err != nil {
		return nil, err
	}
	const kernel = 2 // kthreadd, parent of all the kernel's threads
	self := os.Getpid()
	ours := func(pid int) bool {
		for range len(parents) { // no longer than all, as pids may be used again meanwhile
			if pid == self || pid == kernel {
				return true
			}
			pid = parents[pid]
		}
		return false
	}
	now := spent{}
	for pid := range parents {
		if pid == self || !ours(pid) {
			continue
		}
		if t, err := processClock(pid); err == nil { // otherwise it has just exited
			now[pid] = t
		}
	}
	now[self], err = processClock(self)
	return now, err
}

// since returns the time spent from an earlier reading to this one. A process that
// ended between them is not in there, one that began is.
func (s spent) since(before spent) (total time.Duration) {
	for pid, t := range s {
		total += t - before[pid]
	}
	return total
}

// processClock reads the time a process, all its threads, has been on a
// processor: clock_getcpuclockid(3).
func processClock(pid int) (time.Duration, error) {
	const perProcess, scheduled = 0, 2
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|perProcess|scheduled), &at); err != nil {
		return 0, fmt.Errorf("read the clock of process %d: %w", pid, err)
	}
	return time.Duration(at.Nano()), nil
}

// readParents reads every process's parent.
func readParents() (map[int]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		if parents[pid], err = parseParent(string(text)); err != nil {
			return nil, err
		}
	}
	return parents, nil
}

// parseParent reads proc_pid_stat(5). The second field, a name in parentheses, may
// hold anything.
func parseParent(text string) (int, error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, fmt.Errorf("read the parent of a process: %q", text)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0, fmt.Errorf("read the parent of a process: %w", err)
	}
	return parent, nil
}

// readBusy returns the processor time the whole machine has spent, in proc_stat(5):
// all but idle, iowait and steal.
func readBusy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read what the machine does: %w", err)
	}
	return parseBusy(string(text))
}

func parseBusy(text string) (busy time.Duration, err error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read what the machine does: %q", line)
	}
	// user, nice, system, idle, iowait, irq, softirq; guests are in user
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read what the machine does: %w", err)
		}
		busy += time.Duration(n) * tick
	}
	return busy, nil
}
