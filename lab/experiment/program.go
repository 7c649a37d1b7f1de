package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/lab/testbed"
)

// stopGrace limits how long a program may take to exit after SIGTERM.
const stopGrace = 3 * time.Second

// program is a program that runs on a host, with its output in a log file.
type program struct {
	name, host string
	log        string // path of the log file
	cmd        *testbed.Cmd
	ended      chan struct{}
	err        error // valid once ended is closed
}

// start starts argv on the host. Its output goes to dir/host-name.log. If stdout is not nil, its standard
// output goes there instead.
func start(ctx context.Context, h *testbed.Host, dir, name string, argv []string, stdout io.Writer) (*program, error) {
	p := &program{
		name: name, host: h.Name(), ended: make(chan struct{}),
		log: filepath.Join(dir, fmt.Sprintf("%s-%s.log", h.Name(), name)),
	}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log of %s on %s: %w", name, h.Name(), err)
	}
	p.cmd = h.Command(ctx, argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	// Its own process group: a terminal's Ctrl-C is for us, who end it in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		f.Close()
		return nil, fmt.Errorf("start %s on %s: %w", name, h.Name(), err)
	}
	go func() {
		p.err = p.cmd.Wait()
		f.Close()
		close(p.ended)
	}()
	return p, nil
}

func (p *program) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// stop ends the program: politely, then by force.
func (p *program) stop() {
	if p == nil || !p.running() {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may just have ended
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // if it was frozen, it learns of that now
	select {
	case <-p.ended:
	case <-time.After(stopGrace):
		p.kill()
	}
}

// kill ends the program as a power cut would.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may just have ended
	<-p.ended
}

// failure returns the error to report when the program ended and should not have,
// or ended badly.
func (p *program) failure() error {
	why := "ended before it was asked to"
	if p.err != nil {
		why = p.err.Error()
	}
	return p.trouble(errors.New(why))
}

// trouble wraps an error about the program with the program's last output.
func (p *program) trouble(err error) error {
	last := lastLines(p.log, 8)
	if last == "" {
		return fmt.Errorf("%s on %s: %w; it said nothing (%s)", p.name, p.host, err, p.log)
	}
	return fmt.Errorf("%s on %s: %w; the last it said (all of it: %s):\n%s", p.name, p.host, err, p.log, last)
}

func lastLines(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	lines = lines[max(0, len(lines)-n):]
	if len(lines) == 1 && lines[0] == "" {
		return ""
	}
	return "  " + strings.Join(lines, "\n  ")
}

// buffer is a bytes.Buffer that a program's output may be copied to while
// another goroutine reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(data)
}

func (b *buffer) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.b.Bytes())
}

// errHopeless in an error's chain ends a waitUntil: more time will not help.
var errHopeless = errors.New("")

// hopeless marks an error for which waiting is useless.
func hopeless(err error) error { return fmt.Errorf("%w%w", err, errHopeless) }

// waitUntil polls a condition every interval until it returns nil. When the time runs out, it returns the
// condition's last error.
func waitUntil(ctx context.Context, limit, interval time.Duration, condition func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		switch {
		case err == nil || errors.Is(err, errHopeless):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("%w, after %v", err, limit)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}
