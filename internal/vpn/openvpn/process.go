package openvpn

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

const (
	// readyTime bounds the time that openvpn may take to read its files and open its socket.
	readyTime = 10 * time.Second
	// killTime bounds the time that an openvpn may take to end after a signal.
	killTime = 5 * time.Second
)

// runner runs openvpn on one interface, in one network namespace. An agent uses a single namespace;
// tests and the lab use several in one process.
type runner struct {
	program   string
	iface     string
	namespace netns.NsHandle
	log       *slog.Logger
}

// newRunner creates the interface, in the calling thread's namespace.
func newRunner(iface string, log *slog.Logger) (*runner, error) {
	program, _, err := Find()
	if err != nil {
		return nil, err
	}
	namespace, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open this network namespace: %w", err)
	}
	if err := makeTUN(iface); err != nil {
		return nil, errors.Join(err, namespace.Close())
	}
	return &runner{program: program, iface: iface, namespace: namespace, log: log.With("interface", iface)}, nil
}

// close removes the interface.
func (r *runner) close() error {
	return errors.Join(r.inNamespace(func() error { return removeTUN(r.iface) }), r.namespace.Close())
}

// inNamespace runs fn on a thread in the runner's namespace.
func (r *runner) inNamespace(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here, as it may be in another namespace
		err := r.enter()
		if err == nil {
			err = fn()
		}
		result <- err
	}()
	return <-result
}

// enter moves the calling thread into the namespace, unless it is there already: an agent has no right
// to change namespaces.
func (r *runner) enter() error {
	here, err := netns.Get()
	if err != nil {
		return fmt.Errorf("open this network namespace: %w", err)
	}
	defer here.Close()
	if here.Equal(r.namespace) {
		return nil
	}
	return netns.Set(r.namespace)
}

// run runs one openvpn until it ends. When ctx ends, run ends it. It returns the reason of the end.
// ready is called once it has read its files and opened its interface and its socket, heard for each
// line of its log.
func (r *runner) run(ctx context.Context, args []string, ready func(), heard func(logLine)) error {
	// The thread that starts a process must live as long as the process, which is killed when
	// the thread ends (Pdeathsig).
	return r.inNamespace(func() error { return r.runHere(ctx, args, ready, heard) })
}

func (r *runner) runHere(ctx context.Context, args []string, ready func(), heard func(logLine)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(readyTime, func() {
		cancel(fmt.Errorf("openvpn has not begun its work after %v: see its log (log_level = \"debug\")", readyTime))
	})
	defer late.Stop()

	cmd := exec.CommandContext(ctx, r.program, args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killTime
	// It does not outlive its agent, even if it hangs; and a terminal's Ctrl-C is for the agent alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("read openvpn's log: %w", err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start openvpn: %w", err)
	}
	var why reason
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		line := parseLog(lines.Text())
		line.write(r.log)
		why.hear(line)
		heard(line)
		if strings.Contains(line.text, " link remote: ") && late.Stop() {
			ready()
		}
	}
	err = cmd.Wait()
	if ctx.Err() != nil && !errors.As(err, new(*exec.ExitError)) { // it was told to end, and did
		return context.Cause(ctx)
	}
	return why.ended(err)
}

// reason collects openvpn's messages about why it ends.
type reason struct {
	fatal   string // its last fatal line
	problem string // its last line about a problem
}

func (r *reason) hear(l logLine) {
	option, ofOption := strings.CutPrefix(l.text, "Options error: ")
	switch {
	case ofOption:
		r.fatal = cmp.Or(r.fatal, option) // the first; the others are consequences
	case l.flags&flagFatal != 0 && !strings.HasPrefix(l.text, "Exiting due to fatal error"):
		r.fatal = l.text
	case l.problem():
		r.problem = l.text
	}
}

func (r *reason) ended(status error) error {
	words := cmp.Or(r.fatal, r.problem)
	if status == nil {
		status = errors.New("exit status 0")
	}
	if words == "" {
		return fmt.Errorf("openvpn ended: %w", status)
	}
	return fmt.Errorf("openvpn ended: %s (%w)", words, status)
}
