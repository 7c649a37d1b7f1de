package mptcpify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	stageMark      = "__mptcpify"
	stageDetach    = "detach"
	stageSupervise = "supervise"
	stageSecond    = "supervise-too"

	// peerFD is the descriptor of both halves' end of Exec's socket pair: the first of exec.Cmd's ExtraFiles.
	peerFD = 3
)

// Stage runs a supervisor if args is a command line with which [Exec] starts one from this binary. main must call it
// first. If ok is true, main must exit with code.
func Stage(args []string) (code int, ok bool) {
	if len(args) < 5 || args[1] != stageMark {
		return 0, false
	}
	err := fmt.Errorf("unknown stage %q: only dcol itself runs this command", args[2])
	switch args[2] {
	case stageDetach:
		err = detach(args[0], args[3], args[4])
	case stageSupervise:
		err = superviseStage(args[0], args[3], args[4])
	case stageSecond:
		err = secondStage(args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return exitFailed, true
	}
	return 0, true
}

// detach starts the second half and ends at once, so that the supervisor's parent is init and not the program.
func detach(name, path, relay string) error {
	// Files that the program inherited (a lock, the write end of a pipe) must not stay open in the supervisor.
	if err := unix.CloseRange(peerFD+1, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close the program's files in the supervisor: %w", os.NewSyscallError("close_range", err))
	}
	second := exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{name, stageMark, stageSupervise, path, relay},
		Dir:         "/",
		ExtraFiles:  []*os.File{os.NewFile(peerFD, "peer")},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	return second.Start()
}

// outlive protects the supervisor from ending before the last user of the filter, and makes it answer soon.
func outlive() {
	// A service manager that stops the program signals every process of the service. The program may still need sockets
	// while it shuts down.
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	// With several processors, Go would wake threads to look for work whenever a call comes.
	runtime.GOMAXPROCS(1)
	// This fails without CAP_SYS_RESOURCE, which does no harm.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
}

func superviseStage(name, path, relay string) error {
	outlive()
	listener, err := receiveListener(peerFD)
	if err != nil {
		return err
	}
	p, err := firstOfPair(listener, name, path, relay)
	if err != nil {
		return err
	}
	p.begin()
	if _, err := unix.Write(peerFD, binary.NativeEndian.AppendUint32(nil, uint32(os.Getpid()))); err != nil {
		return fmt.Errorf("tell the program's process that the supervisor is ready: %w", err)
	}
	if err := unix.Close(peerFD); err != nil {
		return err
	}
	return p.run()
}

// secondStage runs a supervisor that the other one has started. The last of args is its index on the board.
func secondStage(args []string) error {
	outlive()
	side, err := strconv.Atoi(args[len(args)-1])
	if err != nil {
		return fmt.Errorf("read the supervisor's number: %w", err)
	}
	p, err := secondOfPair(args[0], args[3], args[4], side)
	if err != nil {
		return err
	}
	return p.run()
}

func receiveListener(peer int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n := 0
	err := retry(func() (err error) {
		_, n, _, _, err = unix.Recvmsg(peer, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("receive the seccomp listener: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return 0, fmt.Errorf("receive the seccomp listener: %w", err)
	}
	if len(messages) != 1 {
		return 0, errors.New("receive the seccomp listener: the program's process ended before it sent one")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, fmt.Errorf("receive the seccomp listener: %w", err)
	}
	return fds[0], nil
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
