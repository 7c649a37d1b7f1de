package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // nobody reaches what root makes
	testbed.Stage()      // hosts of the lab start as this executable
	testscript.Main(m, map[string]func(){"dcol": main, "nobody": nobody})
}

// nobody runs a program without any rights.
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

// The scripts in testdata show what a person types and sees. Besides what
// testscript itself offers they have
//
//	refused PROGRAM ARG...      it ends with code 1, says nothing on stdout, and why on stderr
//	exits CODE PROGRAM ARG...   it ends with that code
//	serve SOCKET STATUS         an agent answers at the socket: with the JSON of a file
//	nobody PROGRAM ARG...       the program has no rights
func TestCommandLine(t *testing.T) {
	dcol, err := exec.LookPath("dcol")
	if err != nil {
		t.Fatal(err)
	}
	// Nobody must reach what testscript makes, which is root's alone, as is the
	// program that go built under a strict umask.
	for _, path := range []string{filepath.Dir(filepath.Dir(dcol)), dcol} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			// Else every process under the race detector takes a second to end.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return os.Chmod(filepath.Dir(env.WorkDir), 0o755)
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Getuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"refused": refused, "exits": exits, "serve": serve,
		},
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
