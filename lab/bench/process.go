package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// process is a program that runs on a host.
type process struct {
	*testbed.Cmd
	what string
	log  string // path
}

// endedError says that a program is gone that should run.
type endedError struct{ what, said string }

func (e *endedError) Error() string { return fmt.Sprintf("%s has ended: %s", e.what, e.said) }

// check reports a program that has ended. Nobody has waited for it, so it is
// still to be seen, as a zombie.
func (p *process) check() error {
	stat, err := p.readStat()
	if err == nil && stat.state != "Z" {
		return nil
	}
	said, _ := p.said()
	return &endedError{p.what, strings.TrimSpace(said)}
}

// said is what the program has written so far.
func (p *process) said() (string, error) {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return "", fmt.Errorf("read what %s says: %w", p.what, err)
	}
	return string(text), nil
}

// stat is the part of /proc/PID/stat that matters here.
type stat struct {
	state string
	cpu   time.Duration // user and system
}

func (p *process) readStat() (s stat, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		return s, fmt.Errorf("look at %s: %w", p.what, err)
	}
	return parseStat(string(text))
}

// parseStat reads proc_pid_stat(5). The second field, a name in parentheses,
// may hold anything.
func parseStat(text string) (s stat, err error) {
	_, after, found := strings.Cut(text, ") ")
	fields := strings.Fields(after)
	if !found || len(fields) < 13 {
		return s, fmt.Errorf("read the state of a process: %q", text)
	}
	s.state = fields[0]
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux there is
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return s, fmt.Errorf("read the state of a process: %w", err)
		}
		s.cpu += time.Duration(n) * tick
	}
	return s, nil
}

// memory is the resident set now and the largest ever, in bytes.
type memory struct{ now, most int64 }

func (p *process) readMemory() (memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		return memory{}, fmt.Errorf("look at %s: %w", p.what, err)
	}
	return parseMemory(text)
}

// parseMemory reads proc_pid_status(5).
func parseMemory(text []byte) (m memory, err error) {
	for line := range bytes.Lines(text) {
		for key, into := range map[string]*int64{"VmRSS:": &m.now, "VmHWM:": &m.most} {
			rest, ours := bytes.CutPrefix(line, []byte(key))
			if !ours {
				continue
			}
			if _, err := fmt.Sscanf(string(rest), "%d kB", into); err != nil {
				return m, fmt.Errorf("read the memory of a process: %q", line)
			}
			*into <<= 10
		}
	}
	if m.now == 0 || m.most == 0 {
		return m, fmt.Errorf("read the memory of a process: it has none")
	}
	return m, nil
}

// usage is what a program used while it was watched.
type usage struct {
	resident []float64 // bytes, at every sample
	highest  int64     // bytes, the kernel's high-water mark
	cpu      float64   // cores, on average
}

// watchUsage samples a program until the function it returns is called.
func watchUsage(p *process) (stop func() (usage, error)) {
	const every = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var u usage
	done := make(chan struct{})
	before, failed := p.readStat()
	began := time.Now()
	go func() {
		defer close(done)
		for failed == nil && pause(ctx, every) == nil {
			var m memory
			if m, failed = p.readMemory(); failed == nil {
				u.resident, u.highest = append(u.resident, float64(m.now)), m.most
			}
		}
	}()
	return func() (usage, error) {
		cancel()
		<-done
		after, err := p.readStat()
		if failed == nil {
			failed = err
		}
		u.cpu = (after.cpu - before.cpu).Seconds() / time.Since(began).Seconds()
		return u, failed
	}
}
