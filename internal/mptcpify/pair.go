package mptcpify

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Two supervisors answer for one filter. Each notices when the other ends, answers
// what it left, and starts another in its place.

// Files of a supervisor that another started, after standard input, output and error.
const (
	listenerFD = 3 + iota
	boardFD
	otherFD
)

// A supervisor that lived for longLife is replaced at once. Where they end sooner than that, or none can be started,
// the next try is after pause.
const (
	longLife = time.Second
	pause    = 100 * time.Millisecond
)

// pair is a supervisor's view of the two.
type pair struct {
	own   *supervisor
	name  string // of this program, as it was called
	path  string // of the supervised program
	other *os.File
}

// firstOfPair makes the supervisor that is there first, and starts the other.
func firstOfPair(listener int, name, path string) (*pair, error) {
	shared, err := newBoard()
	if err != nil {
		return nil, err
	}
	own, err := newSupervisor(listener, shared, 0)
	if err != nil {
		return nil, err
	}
	return &pair{own: own, name: name, path: path}, nil
}

// secondOfPair makes a supervisor that the other has started, in the place of side.
func secondOfPair(name, path string, side int) (*pair, error) {
	if side < 0 || side >= supervisors {
		return nil, fmt.Errorf("there is no supervisor %d", side)
	}
	for _, fd := range []int{listenerFD, boardFD, otherFD} {
		unix.CloseOnExec(fd)
	}
	shared, err := openBoard(os.NewFile(boardFD, "board"))
	if err != nil {
		return nil, err
	}
	own, err := newSupervisor(listenerFD, shared, side)
	if err != nil {
		return nil, err
	}
	return &pair{own: own, name: name, path: path, other: os.NewFile(otherFD, "other")}, nil
}

// run returns when nobody is under the filter any more.
func (p *pair) run() error {
	go p.watch()
	return p.own.wait()
}

// watch keeps the other supervisor alive, for as long as this process lives.
func (p *pair) watch() {
	for {
		started := time.Now()
		if p.other == nil {
			if err := p.startOther(); err != nil {
				time.Sleep(pause) // there is no memory, or no process to be had
				continue
			}
		}
		awaitEnd(p.other)
		p.other = nil
		p.own.inherit(1 - p.own.side)
		if time.Since(started) < longLife {
			time.Sleep(pause)
		}
	}
}

// startOther starts the other supervisor from this one's own executable, which may have been replaced on disk.
func (p *pair) startOther() error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "other"), os.NewFile(uintptr(ends[1]), "own")
	defer theirs.Close()
	// A duplicate, as closing an os.File of the listener would close the listener.
	listener, err := unix.FcntlInt(uintptr(p.own.listener), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		ours.Close()
		return os.NewSyscallError("fcntl", err)
	}
	handed := os.NewFile(uintptr(listener), "listener")
	defer handed.Close()
	cmd := exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{p.name, stageMark, stageSecond, p.path, fmt.Sprint(1 - p.own.side)},
		Dir:         "/",
		ExtraFiles:  []*os.File{handed, p.own.shared.file, theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return fmt.Errorf("start the other supervisor: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	p.other = ours
	return nil
}

// awaitEnd returns when the process at the other end is gone with all its threads, and closes ours.
func awaitEnd(end *os.File) {
	defer end.Close()
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Read(int(end.Fd()), make([]byte, 1))
	}
}

// inherit answers what the supervisor at side had received and not answered when it ended.
func (s *supervisor) inherit(side int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, as in work
		if err := blockSignals(); err != nil {
			return
		}
		for i := range s.shared.calls[side] {
			left := &s.shared.calls[side][i]
			if left.id == 0 {
				continue
			}
			if err := s.answer(left); errors.Is(err, errAstray) {
				s.failed <- err // it cannot work from this thread, and the other process can
				return
			}
			left.id = 0
		}
	}()
	<-done
}
