package crew

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Clock returns the processor time of a process with all its threads: clock_getcpuclockid(3).
func Clock(pid int) (time.Duration, error) {
	const perProcess, scheduled = 0, 2
	var at unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|perProcess|scheduled), &at); err != nil {
		return 0, fmt.Errorf("read the clock of process %d: %w", pid, err)
	}
	return time.Duration(at.Nano()), nil
}

// CPU returns the processor time that the program has taken.
func (p *Process) CPU() (time.Duration, error) { return Clock(p.cmd.Process.Pid) }

// Memory is a program's current and largest resident set, in bytes.
type Memory struct {
	Now, Most int64
	// Anonymous and File are parts of Now: the program's own memory, and pages of its file, which the kernel may drop.
	Anonymous, File int64
}

// Memory reads the program's memory.
func (p *Process) Memory() (m Memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return m, fmt.Errorf("read the memory of %s on %s: %w", p.Name, p.Host, err)
	}
	m.Now, m.Most = Field(string(text), "VmRSS:")<<10, Field(string(text), "VmHWM:")<<10
	m.Anonymous, m.File = Field(string(text), "RssAnon:")<<10, Field(string(text), "RssFile:")<<10
	if m.Now == 0 || m.Most == 0 {
		return m, fmt.Errorf("read the memory of %s on %s: it has none", p.Name, p.Host)
	}
	return m, nil
}

// Resident returns the program's resident set in bytes, which the kernel computes page by page
// (/proc/PID/smaps_rollup). The numbers of Memory are less exact and faster to read.
func (p *Process) Resident() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of %s on %s: %w", p.Name, p.Host, err)
	}
	return Field(string(text), "Rss:") << 10, nil
}

// Field returns the number behind a key in a file of /proc, such as /proc/PID/status, or 0 if the key is missing.
func Field(text, key string) (n int64) {
	_, rest, _ := strings.Cut("\n"+text, "\n"+key)
	_, _ = fmt.Sscan(rest, &n)
	return n
}

// Usage has the resources that a program used during a measurement.
type Usage struct {
	Resident []float64 // bytes, at every sample
	Last     Memory    // the last sample
	Highest  int64     // bytes, the kernel's high-water mark
	CPU      float64   // cores, on average
}

// Watch samples a program until the function it returns is called.
func (p *Process) Watch() (stop func() (Usage, error)) {
	const every = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var u Usage
	done := make(chan struct{})
	before, failed := p.CPU()
	began := time.Now()
	go func() {
		defer close(done)
		for failed == nil && Pause(ctx, every) == nil {
			var m Memory
			if m, failed = p.Memory(); failed == nil {
				u.Resident, u.Highest, u.Last = append(u.Resident, float64(m.Now)), m.Most, m
			}
		}
	}()
	return func() (Usage, error) {
		cancel()
		<-done
		after, err := p.CPU()
		u.CPU = (after - before).Seconds() / time.Since(began).Seconds()
		return u, errors.Join(failed, err)
	}
}

// MachineTime has the busy, idle and stolen time of all processors of the machine since it started.
type MachineTime struct {
	Busy, Idle, Stolen time.Duration // Stolen is the hypervisor's
}

// ReadMachineTime reads the machine's current times.
func ReadMachineTime() (MachineTime, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return MachineTime{}, fmt.Errorf("read processor times: %w", err)
	}
	return parseMachineTime(string(text))
}

// parseMachineTime reads the first line of /proc/stat (proc_stat(5)): user, nice, system, idle, iowait, irq,
// softirq, steal. The times of guests are in user.
func parseMachineTime(text string) (m MachineTime, err error) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return m, fmt.Errorf("read processor times: %q", line)
	}
	for i, into := range []*time.Duration{&m.Busy, &m.Busy, &m.Busy, &m.Idle, &m.Idle, &m.Busy, &m.Busy, &m.Stolen} {
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return m, fmt.Errorf("read processor times: %w", err)
		}
		*into += time.Duration(n) * tick
	}
	return m, nil
}

// ShareSince returns the part of all processors' time since an earlier reading that was not idle.
func (m MachineTime) ShareSince(before MachineTime) float64 {
	used, idle := m.Busy+m.Stolen-before.Busy-before.Stolen, m.Idle-before.Idle
	if used+idle == 0 {
		return 0
	}
	return float64(used) / float64(used+idle)
}
