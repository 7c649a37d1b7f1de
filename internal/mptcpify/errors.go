package mptcpify

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
)

// Exit codes of `dcol run` if the program did not run. They are those of env(1), nice(1) and the shells.
const (
	exitFailed        = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

// UnavailableError reports that a method of making sockets MPTCP does not work on this host, and how to fix it.
type UnavailableError struct {
	Method string
	Fix    string
	Err    error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s cannot be used here: %v (%s)", e.Method, e.Err, e.Fix)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// ExitCode returns the exit code of `dcol run` after [Exec] failed.
func ExitCode(err error) int {
	var program *ProgramError
	switch {
	case !errors.As(err, &program):
		return exitFailed
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return exitNotFound
	default:
		return exitNotExecutable
	}
}

// ProgramError reports that the program itself could not be executed.
type ProgramError struct {
	Program string
	Err     error
}

func (e *ProgramError) Error() string {
	switch {
	case errors.Is(e.Err, exec.ErrNotFound):
		return fmt.Sprintf("run %s: no such program in PATH (give its path, or install it)", e.Program)
	case errors.Is(e.Err, fs.ErrNotExist):
		return fmt.Sprintf("run %s: it does not exist, or its interpreter does not", e.Program)
	case errors.Is(e.Err, fs.ErrPermission):
		return fmt.Sprintf("run %s: not executable (chmod +x, or run it with its interpreter)", e.Program)
	case errors.Is(e.Err, syscall.ENOEXEC):
		return fmt.Sprintf("run %s: not a program for this machine, nor a script with a #! line", e.Program)
	default:
		return fmt.Sprintf("run %s: %v", e.Program, e.Err)
	}
}

func (e *ProgramError) Unwrap() error { return e.Err }
