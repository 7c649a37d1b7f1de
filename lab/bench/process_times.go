package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
)

// processTimes holds the processor time so far of each process that works for a benchmark: this one, its descendants, and
// the kernel's threads. A packet between namespaces is handled by its sender or by the kernel's ksoftirqd, so this
// includes all work of a network. The work of other programs is included only where kernel threads do it for them.
type processTimes map[int]time.Duration

// readProcessTimes reads the processor times. It reads that of this process last.
func readProcessTimes() (processTimes, error) {
	parents, err := readParents()
	if err != nil {
		return nil, err
	}
	const kernel = 2 // kthreadd, parent of all the kernel's threads
	self := os.Getpid()
	ours := func(pid int) bool {
		for range len(parents) { // bounded, because a pid that is used again meanwhile may close a loop
			if pid == self || pid == kernel {
				return true
			}
			pid = parents[pid]
		}
		return false
	}
	now := processTimes{}
	for pid := range parents {
		if pid == self || !ours(pid) {
			continue
		}
		if t, err := crew.Clock(pid); err == nil { // otherwise it has just exited
			now[pid] = t
		}
	}
	now[self], err = crew.Clock(self)
	return now, err
}

// since returns the time spent from an earlier reading to this one. It includes processes that began between them, but
// not those that ended.
func (s processTimes) since(before processTimes) (total time.Duration) {
	for pid, t := range s {
		total += t - before[pid]
	}
	return total
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

// parseParent reads proc_pid_stat(5). The second field is a name in parentheses, which may contain any character.
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
