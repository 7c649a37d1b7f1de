package experiment

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/detour-collective/dcol/lab/testbed"
)

// console reads a shell's lines and runs its commands. terminal and stream implement it.
type console interface {
	interactive() bool
	// readLine reads a line. words are its possible first words, for completion. It returns io.EOF at the end
	// of the session.
	readLine(ctx context.Context, prompt string, words []string) (string, error)
	// run runs a command on a host to its end.
	run(ctx context.Context, h *testbed.Host, name string, arg ...string) error
}

// newConsole reads from in. env is the environment of the commands that it runs.
func newConsole(in *os.File, out io.Writer, env []string) console {
	if term.IsTerminal(int(in.Fd())) {
		return &terminal{in: in, out: out, env: env}
	}
	return &stream{out: out, env: env, lines: bufio.NewScanner(in)}
}

// environment returns our environment. PATH begins with the folder of the dcol that the hosts run.
func environment(program string) []string {
	if program == "" {
		return os.Environ()
	}
	return append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
}

// inBackground reads a line and returns early if ctx ends. The goroutine that still reads then ends with the process.
func inBackground(ctx context.Context, read func() (string, error)) (string, error) {
	type answer struct {
		line string
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		line, err := read()
		answered <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case a := <-answered:
		return a.line, a.err
	}
}

// stream reads lines from a pipe or a file.
type stream struct {
	out   io.Writer
	env   []string
	lines *bufio.Scanner
}

func (*stream) interactive() bool { return false }

func (s *stream) readLine(ctx context.Context, _ string, _ []string) (string, error) {
	return inBackground(ctx, func() (string, error) {
		if s.lines.Scan() {
			return s.lines.Text(), nil
		}
		if err := s.lines.Err(); err != nil {
			return "", fmt.Errorf("read commands: %w", err)
		}
		return "", io.EOF
	})
}

// run gives the command no input, because the input has the shell's lines.
func (s *stream) run(ctx context.Context, h *testbed.Host, name string, arg ...string) error {
	cmd := h.Command(ctx, name, arg...)
	cmd.Env = s.env
	cmd.Stdout, cmd.Stderr = s.out, s.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("on %s: %w", h.Name(), err)
	}
	return nil
}

// terminal is a person's terminal. It is in raw mode only while a line is edited.
type terminal struct {
	in     *os.File
	out    io.Writer
	env    []string
	editor *term.Terminal
}

func (*terminal) interactive() bool { return true }

func (t *terminal) readLine(ctx context.Context, prompt string, words []string) (string, error) {
	fd := int(t.in.Fd())
	cooked, err := term.MakeRaw(fd)
	if err != nil {
		return "", fmt.Errorf("set up the terminal: %w", err)
	}
	defer func() { _ = term.Restore(fd, cooked) }() // the terminal may be closed
	if t.editor == nil {                            // one editor, one history
		t.editor = term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{t.in, t.out}, prompt)
	}
	if width, height, err := term.GetSize(fd); err == nil && width > 0 {
		_ = t.editor.SetSize(width, height) // only looks
	}
	t.editor.SetPrompt(prompt)
	t.editor.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		return complete(line, pos, key, words)
	}
	return inBackground(ctx, t.editor.ReadLine)
}

// complete completes the first word when Tab is pressed, if only one word is possible.
func complete(line string, pos int, key rune, words []string) (string, int, bool) {
	if key != '\t' || strings.Contains(line[:pos], " ") {
		return "", 0, false
	}
	found := ""
	for _, w := range words {
		if !strings.HasPrefix(w, line[:pos]) {
			continue
		}
		if found != "" {
			return "", 0, false
		}
		found = w + " "
	}
	if found == "" {
		return "", 0, false
	}
	return found + line[pos:], len(found), true
}

// run gives the command the terminal, as a shell does. The command is the foreground process group, and only it
// receives Ctrl-C.
func (t *terminal) run(ctx context.Context, h *testbed.Host, name string, arg ...string) error {
	fd := int(t.in.Fd())
	own, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return fmt.Errorf("find out whose the terminal is: %w", err)
	}
	cmd := h.Command(ctx, name, arg...)
	cmd.Env = t.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.in, t.out, t.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Foreground: true, Ctty: fd}
	err = cmd.Run()
	// The kernel stops a background process that takes the terminal back.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	if back := unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, own); back != nil {
		return fmt.Errorf("take the terminal back: %w", back)
	}
	if err != nil {
		return fmt.Errorf("on %s: %w", h.Name(), err)
	}
	return nil
}
