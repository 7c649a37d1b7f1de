package crew

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/lab/remote"
	"github.com/detour-collective/dcol/lab/testbed"
)

// stopGrace bounds the time that a program may take to exit after SIGTERM.
const stopGrace = 3 * time.Second

// Process is a program that runs on a host.
type Process struct {
	Name, Host string
	Log        string // path of the file with its output

	cmd   *testbed.Cmd
	from  int64 // offset of its output in the file
	ended chan struct{}
	err   error // once ended is closed
}

// Start starts a program on a host. Its output is added to Logs/HOST-NAME.log.
func (c Crew) Start(ctx context.Context, host, name string, argv ...string) (*Process, error) {
	return c.StartTo(ctx, nil, host, name, argv...)
}

// StartTo is like Start, but writes the program's standard output to stdout unless that is nil. The log has the rest.
func (c Crew) StartTo(ctx context.Context, stdout io.Writer, host, name string, argv ...string) (*Process, error) {
	cmd := c.Host(host).Command(ctx, argv[0], argv[1:]...)
	cmd.Stdout = stdout
	return c.start(cmd, host, name)
}

// StartRemote starts a program whose methods can be called over its standard input and output.
func (c Crew) StartRemote(ctx context.Context, host, name string, argv ...string) (*Process, *remote.Client, error) {
	cmd := c.Host(host).Command(ctx, argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("start %s on %s: %w", name, host, err)
	}
	answers, theirs, err := os.Pipe() // exec's own would be closed by Wait before all is read
	if err != nil {
		return nil, nil, fmt.Errorf("start %s on %s: %w", name, host, err)
	}
	cmd.Stdout = theirs
	p, err := c.start(cmd, host, name)
	theirs.Close()
	if err != nil {
		answers.Close()
		return nil, nil, err
	}
	return p, remote.NewClient(in, answers), nil
}

func (c Crew) start(cmd *testbed.Cmd, host, name string) (*Process, error) {
	p := &Process{
		Name: name, Host: host, cmd: cmd, ended: make(chan struct{}),
		Log: filepath.Join(c.Logs, fmt.Sprintf("%s-%s.log", host, name)),
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log of %s on %s: %w", name, host, err)
	}
	defer log.Close()
	if p.from, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, fmt.Errorf("log of %s on %s: %w", name, host, err)
	}
	cmd.Stderr = log
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	// The program has its own process group, so that a terminal's Ctrl-C reaches only us. We end programs in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", name, host, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Ended returns a channel that is closed when the program has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err returns how the program ended, or nil if it ended well. It may be called only after the end.
func (p *Process) Err() error { return p.err }

// Running reports whether the program has not ended yet. A nil process does not run.
func (p *Process) Running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Stop ends the program with SIGTERM, and with SIGKILL if it does not exit in time.
func (p *Process) Stop() {
	if !p.Running() {
		return
	}
	_ = p.Signal(syscall.SIGTERM) // it may just have ended
	_ = p.Signal(syscall.SIGCONT) // a frozen program handles SIGTERM only now
	select {
	case <-p.ended:
	case <-time.After(stopGrace):
		p.Kill()
	}
}

// Kill ends the program as a power cut would.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may just have ended
	<-p.ended
}

// Output returns the program's output so far.
func (p *Process) Output() (string, error) {
	data, err := os.ReadFile(p.Log)
	if err != nil {
		return "", fmt.Errorf("read the output of %s on %s: %w", p.Name, p.Host, err)
	}
	return string(data[min(p.from, int64(len(data))):]), nil
}

// Failure returns the error to report if the program ended too early, or with an error.
func (p *Process) Failure() error {
	if p.err != nil {
		return p.Trouble(p.err)
	}
	return p.Trouble(errors.New("it exited without being asked to"))
}

// Trouble wraps an error about the program with the last lines of its output.
func (p *Process) Trouble(err error) error {
	const most = 8
	text, _ := p.Output() // without the output, the error still helps
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = lines[max(0, len(lines)-most):]
	if lines[0] == "" {
		return fmt.Errorf("%s on %s: %w; it wrote nothing to %s", p.Name, p.Host, err, p.Log)
	}
	return fmt.Errorf("%s on %s: %w; the end of %s:\n  %s", p.Name, p.Host, err, p.Log, strings.Join(lines, "\n  "))
}

// AwaitOutput waits until the program has written a text.
func (p *Process) AwaitOutput(ctx context.Context, limit time.Duration, text string) error {
	return p.Await(ctx, limit, func() error {
		if said, err := p.Output(); err != nil || !strings.Contains(said, text) {
			return p.Trouble(fmt.Errorf("it has not written %q", text))
		}
		return nil
	})
}

// Await polls a condition until it holds or the program ends.
func (p *Process) Await(ctx context.Context, limit time.Duration, condition func() error) error {
	return Await(ctx, limit, 50*time.Millisecond, func() error {
		if !p.Running() {
			return Hopeless(p.Failure())
		}
		return condition()
	})
}
