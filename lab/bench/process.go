package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// process is a program that runs on a host. Its end is waited for.
type process struct {
	*testbed.Cmd
	what  string
	log   string        // path
	ended chan struct{} // closed at its end
	err   error         // then
}

// start starts a program on a host, with its output in the benchmark's folder. The program ends with the
// network.
func (s *network) start(ctx context.Context, host, name string, argv ...string) (*process, error) {
	path := filepath.Join(s.opts.Out, host+"-"+name+".log")
	log, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("log of %s on %s: %w", name, host, err)
	}
	defer log.Close()
	p := s.prepare(ctx, host, name, argv...)
	p.log, p.Stdout, p.Stderr = path, log, log
	return p, s.launch(p)
}

// prepare is for callers who want a program's output for themselves.
func (s *network) prepare(ctx context.Context, host, name string, argv ...string) *process {
	return &process{
		Cmd: s.Host(host).Command(ctx, argv[0], argv[1:]...), what: name + " on " + host, ended: make(chan struct{}),
	}
}

func (s *network) launch(p *process) error {
	if err := p.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.what, err)
	}
	s.processes = append(s.processes, p)
	go func() {
		p.err = p.Wait()
		close(p.ended)
	}()
	return nil
}

// kill ends the program, and returns when it has ended.
func (p *process) kill() {
	_ = p.Process.Kill() // it may just have ended
	<-p.ended
}

// endedError reports that a program exited unexpectedly.
type endedError struct{ what, said string }

func (e *endedError) Error() string { return fmt.Sprintf("%s has ended: %s", e.what, e.said) }

// said returns what the program has written so far.
func (p *process) said() (string, error) {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return "", fmt.Errorf("read what %s says: %w", p.what, err)
	}
	return string(text), nil
}

// check reports a program that has ended.
func (p *process) check() error {
	select {
	case <-p.ended:
		text, err := p.said()
		return errors.Join(&endedError{p.what, strings.TrimSpace(text)}, err)
	default:
		return nil
	}
}

// awaitSaid waits until the program has printed the word that it prints when ready.
func (p *process) awaitSaid(ctx context.Context, word string) error {
	return await(ctx, func() error {
		if err := p.check(); err != nil {
			return err
		}
		if text, err := p.said(); err != nil || !strings.Contains(text, word) {
			return fmt.Errorf("%s is not ready: it says %q", p.what, text)
		}
		return nil
	})
}

// readCPU returns the processor time, user and system, that the program has taken.
func (p *process) readCPU() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("look at %s: %w", p.what, err)
	}
	return parseCPU(string(text))
}

// tick is the unit of times in /proc: USER_HZ is 100 on every Linux.
const tick = 10 * time.Millisecond

// parseCPU reads proc_pid_stat(5). The second field, a name in parentheses, may
// hold anything.
func parseCPU(text string) (cpu time.Duration, err error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the times of a process: %q", text)
	}
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the times of a process: %w", err)
		}
		cpu += time.Duration(n) * tick
	}
	return cpu, nil
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

// usage has the resources that a program used during a measurement.
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
	before, failed := p.readCPU()
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
		after, err := p.readCPU()
		if failed == nil {
			failed = err
		}
		u.cpu = (after - before).Seconds() / time.Since(began).Seconds()
		return u, failed
	}
}
