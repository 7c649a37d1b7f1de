package mptcpify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/converter/ask"
)

// Exec replaces the calling process by the program argv[0] (looked up in PATH), whose TCP sockets become MPTCP. It
// returns only on failure; then the caller should exit with [ExitCode]. On a kernel without MPTCP it logs a warning
// and executes the program with its sockets unchanged.
//
// relay is the socket of the relay to converters. If a relay listens there, connect() is led to the converters that
// it names.
//
// The calling binary must pass its arguments to [Stage] before anything else.
func Exec(log *slog.Logger, relay string, argv []string) error {
	path, err := lookPath(argv[0])
	if err != nil {
		return &ProgramError{Program: argv[0], Err: err}
	}

	switch protocol, err := defaultProtocol(); {
	case err != nil:
		return fmt.Errorf("check the protocol of a new TCP socket: %w", err)
	case protocol == unix.IPPROTO_MPTCP:
		// An outer `dcol run` or the kernel's hook is active already.
		return execProgram(path, argv)
	}
	if err := kernelHasMPTCP(); err != nil {
		log.Warn("this kernel makes no MPTCP sockets here; the program runs with plain TCP",
			"error", err, "fix", "sysctl net.mptcp.enabled=1, or a kernel with CONFIG_MPTCP")
		return execProgram(path, argv)
	}

	// The filter belongs to the thread, and execve keeps that of the calling thread. The thread is never unlocked,
	// because a filter cannot be removed.
	runtime.LockOSThread()
	// The supervisors have another working directory.
	if relay, err = filepath.Abs(relay); err != nil || !ask.Listens(relay) {
		relay = ""
	}
	if err := supervise(path, relay); err != nil {
		return err
	}
	return execProgram(path, argv)
}

// supervise installs the filter on the calling thread and returns when a supervisor answers for it. Without a relay the
// filter does not stop at connect().
func supervise(path, relay string) error {
	if err := checkProc(); err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket pair for the supervisor: %w", err)
	}
	ours := pair[0]
	defer func() { _ = unix.Close(ours) }()

	if err := startSupervisor(pair[1], path, relay); err != nil {
		return err
	}
	listener, err := installFilter(filterProgram(relay != ""))
	if err != nil {
		return err
	}
	// Only supervisors may keep a copy, because the kernel keeps callers waiting while any copy is open.
	defer func() { _ = unix.Close(listener) }()
	if err := unix.Sendmsg(ours, []byte{0}, unix.UnixRights(listener), nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("hand the seccomp listener to the supervisor: %w", err)
	}
	ready := make([]byte, 4)
	n := 0
	err = retry(func() (err error) {
		n, err = unix.Read(ours, ready)
		return err
	})
	if err == nil && n != len(ready) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("wait for the supervisor to be ready: %w", err)
	}
	if relay != "" {
		// Under Yama's scope 1 only ancestors, and the process named here with its descendants, may open the files of a
		// process. Without Yama this fails, and is not needed.
		_ = unix.Prctl(unix.PR_SET_PTRACER, uintptr(binary.NativeEndian.Uint32(ready)), 0, 0, 0)
	}
	return nil
}

// startSupervisor runs the first half of Stage, which forks the supervisor and ends. It always closes peer.
func startSupervisor(peer int, path, relay string) error {
	end := os.NewFile(uintptr(peer), "supervisor")
	defer end.Close()
	first := exec.Cmd{
		Path:       "/proc/self/exe",
		Args:       []string{os.Args[0], stageMark, stageDetach, path, relay},
		ExtraFiles: []*os.File{end},
		Stderr:     os.Stderr,
	}
	if err := first.Run(); err != nil {
		return fmt.Errorf("start the supervisor of the program's sockets: %w", err)
	}
	return nil
}

func execProgram(path string, argv []string) error {
	err := syscall.Exec(path, argv, os.Environ())
	if errors.Is(err, syscall.ENOEXEC) {
		// The shell runs a script without a #! line, as with execvp(3).
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, argv[1:]...), os.Environ())
	}
	return &ProgramError{Program: argv[0], Err: err}
}

// lookPath finds a program as shells do, even if PATH contains the working directory.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		return path, nil
	}
	return path, err
}

// checkProc checks that /proc belongs to this process's pid namespace. The supervisor reads a caller's network
// namespace there, and with other process numbers it would find that of another process.
func checkProc() error {
	self, err := os.Readlink("/proc/self")
	if err == nil && self != strconv.Itoa(os.Getpid()) {
		err = fmt.Errorf("/proc/self is process %s, this is process %d", self, os.Getpid())
	}
	if err != nil {
		return &UnavailableError{
			Method: "seccomp",
			Fix:    "mount the proc file system of this pid namespace: mount -t proc proc /proc",
			Err:    err,
		}
	}
	return nil
}

// defaultProtocol returns the protocol of a new TCP socket.
func defaultProtocol() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
}

func kernelHasMPTCP() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP)
	}
	if err != nil {
		return os.NewSyscallError("socket(IPPROTO_MPTCP)", err)
	}
	return unix.Close(fd)
}
