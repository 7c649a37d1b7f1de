// Package clitest runs command-line scripts against dcol's programs.
package clitest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// Main runs a package's tests. Scripts can run the test's executable under the name program, which calls main, and
// under the name nobody, which runs a program without privileges.
func Main(m *testing.M, program string, main func()) {
	syscall.Umask(0o022) // the unprivileged user must reach the files that root creates
	testscript.Main(m, map[string]func(){program: main, "nobody": nobody})
}

// nobody runs a program without privileges.
func nobody() {
	const id = 65534
	if os.Getuid() == 0 {
		for _, err := range []error{syscall.Setgroups(nil), syscall.Setgid(id), syscall.Setuid(id)} {
			if err != nil {
				fmt.Fprintln(os.Stderr, "nobody: give up root:", err)
				os.Exit(2)
			}
		}
	}
	path, err := exec.LookPath(os.Args[1])
	if err == nil {
		err = syscall.Exec(path, os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "nobody:", err)
	os.Exit(2)
}

// Command is an additional command for scripts.
type Command = func(*testscript.TestScript, bool, []string)

// Run runs the scripts in testdata against the program. In addition to testscript's own commands and those in commands,
// there are:
//
//	refused PROGRAM ARG...      the program exits with 1, prints nothing to stdout and the reason to stderr
//	exits CODE PROGRAM ARG...   the program exits with CODE
//	nobody PROGRAM ARG...       the program runs without privileges
func Run(t *testing.T, program string, commands map[string]Command) {
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	// The unprivileged user needs access to the folders that testscript creates for root only, and to the program,
	// which go may have built under a strict umask.
	for _, path := range []string{filepath.Dir(filepath.Dir(path)), path} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	all := map[string]Command{"refused": refused, "exits": exits}
	maps.Copy(all, commands)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			// Without this, every process under the race detector takes a second to end.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return os.Chmod(filepath.Dir(env.WorkDir), 0o755)
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Getuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: all,
	})
}

var errorLine = regexp.MustCompile(`(?m)^error: \S`)

func refused(ts *testscript.TestScript, neg bool, args []string) {
	exits(ts, neg, append([]string{"1"}, args...))
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("it said on stdout, where only answers belong:\n%s", out)
	}
	if said := ts.ReadFile("stderr"); !errorLine.MatchString(said) || !strings.HasSuffix(said, "\n") {
		ts.Fatalf("no line of stderr begins with error:\n%s", said)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
