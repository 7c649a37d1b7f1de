package openvpn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// readyTime is how long openvpn may take to read its files and connect to the management socket.
const readyTime = 10 * time.Second

// spec describes how to start openvpn.
type spec struct {
	program   string
	dir       rundir
	namespace *namespace
	log       *slog.Logger
	notice    func(*process, notice) // called by one goroutine of the process; must not wait for an answer
}

// process is one run of openvpn.
type process struct {
	management *management
	cmd        *exec.Cmd
	exited     chan struct{} // it has ended, and its log was read
	done       chan struct{} // its management messages were read, too; the reason may be the last one
	status     error         // of waiting for it

	mu      sync.Mutex
	fatal   string // its last fatal line
	problem string // its last line about a problem
}

// start runs openvpn with a configuration and returns when it has connected to the management
// socket. By then it has read its files, and errors in them are returned.
func (s *spec) start(ctx context.Context, config string) (*process, error) {
	if err := s.dir.write(config); err != nil {
		return nil, err
	}
	listener, err := s.dir.listen()
	if err != nil {
		return nil, err
	}
	defer listener.Close()

	p := &process{exited: make(chan struct{}), done: make(chan struct{})}
	if err := s.spawn(p); err != nil {
		return nil, err
	}
	conn, err := s.greet(ctx, p, listener)
	if err != nil {
		p.kill()
		<-p.exited
		return nil, err
	}
	p.management = &management{conn: conn}
	s.attach(p)
	return p, nil
}

// spawn starts the process and a goroutine that waits for its end.
func (s *spec) spawn(p *process) error {
	output, input, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe for openvpn's log: %w", err)
	}
	p.cmd = &exec.Cmd{
		Path:   s.program,
		Args:   []string{s.program, "--config", s.dir.config()},
		Dir:    s.dir.path,
		Env:    []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Stdout: input,
		Stderr: input,
		SysProcAttr: &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGTERM,
			Setpgid:   true, // a terminal's Ctrl-C is for us alone
		},
	}
	started := make(chan error)
	go func() {
		// Pdeathsig is sent when the thread that started the process ends (prctl(2)). This thread
		// stays locked until the process ends, and then ends too, because it may be in another
		// namespace than Go's other threads.
		runtime.LockOSThread()
		err := s.namespace.enter()
		if err == nil {
			err = p.cmd.Start()
		}
		input.Close()
		if err != nil {
			output.Close()
			started <- err
			return
		}
		started <- nil
		read := make(chan struct{})
		go func() {
			defer close(read)
			defer output.Close()
			s.readLog(p, output)
		}()
		p.status = p.cmd.Wait()
		<-read // its last messages
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", s.program, err)
	}
	return nil
}

// greet records the process and accepts its connection, unless it ends before.
func (s *spec) greet(ctx context.Context, p *process, listener *net.UnixListener) (net.Conn, error) {
	if err := s.dir.remember(p.cmd.Process.Pid); err != nil {
		return nil, err
	}
	if err := listener.SetDeadline(time.Now().Add(readyTime)); err != nil {
		return nil, fmt.Errorf("wait for openvpn: %w", err)
	}
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-p.exited:
		case <-ctx.Done():
		case <-over:
		}
		listener.Close()
	}()
	conn, err := listener.Accept()
	switch {
	case err == nil:
		return conn, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("openvpn does not come to its management socket within %v: see its log (log_level = \"debug\")", readyTime)
	}
	<-p.exited
	return nil, p.err()
}

// attach reads openvpn's messages and starts its work. If the connection breaks, openvpn is ended,
// because its state would be unknown.
func (s *spec) attach(p *process) {
	heard := make(chan struct{})
	go func() {
		p.management.read(func(n notice) { s.notice(p, n) })
		close(heard)
		p.management.conn.Close()
		end(p)
	}()
	go func() {
		<-p.exited
		select {
		case <-heard:
		case <-time.After(killTime): // somebody else has the socket
			p.management.conn.Close()
			<-heard
		}
		close(p.done)
	}()
	for _, text := range []string{"log on", "state on", "bytecount 5", "hold off", "hold release"} {
		p.management.post(text)
	}
}

func (s *spec) readLog(p *process, r io.Reader) {
	lines := bufio.NewReader(r)
	for {
		text, err := lines.ReadString('\n')
		if text = strings.TrimSpace(text); text != "" {
			line := parseLog(text)
			p.hear(line)
			line.write(s.log)
		}
		if err != nil {
			return
		}
	}
}

func (p *process) hear(l logLine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	option, ofOption := strings.CutPrefix(l.text, "Options error: ")
	switch {
	case ofOption && p.fatal == "":
		p.fatal = option // only the first; the others are consequences
	case l.flags&flagFatal != 0 && !strings.HasPrefix(l.text, "Exiting due to fatal error"):
		p.fatal = l.text
	case l.problem():
		p.problem = l.text
	}
}

// await waits until openvpn has reached a stage. If it does not, openvpn is ended and the reason is
// returned.
func (p *process) await(ctx context.Context, far <-chan struct{}) error {
	late := time.NewTimer(readyTime)
	defer late.Stop()
	select {
	case <-far:
		return nil
	case <-p.done:
		return p.err()
	case <-ctx.Done():
		end(p)
		return ctx.Err()
	case <-late.C:
		end(p)
		return fmt.Errorf("openvpn has not begun its work after %v: see its log (log_level = \"debug\")", readyTime)
	}
}

func (p *process) terminate()             { _ = p.cmd.Process.Signal(syscall.SIGTERM) } // it may have ended
func (p *process) kill()                  { p.cmd.Process.Kill() }
func (p *process) ended() <-chan struct{} { return p.done }

func (p *process) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	words := p.fatal
	if words == "" {
		words = p.problem
	}
	status := "exit status 0"
	if p.status != nil {
		status = p.status.Error()
	}
	return &ExitError{Status: status, Words: words}
}
