package mptcpify

import (
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Each filter has two supervisors. One answers, the other waits. Each notices when the other ends, and starts a new
// one, which waits. If the one that answered has ended, the other answers from then on, first the calls that were
// left unanswered.

// Descriptors of a supervisor that the other started, after standard input, output and error.
const (
	listenerFD = 3 + iota
	boardFD
	otherFD
)

// A supervisor that lived for at least longLife is replaced at once. If it ended sooner, or could not be started, the
// next attempt follows after pause, which doubles each time up to longestPause.
const (
	longLife     = time.Second
	pause        = 100 * time.Millisecond
	longestPause = 10 * time.Second
)

// respawns counts supervisors in a row that did not live long.
type respawns struct {
	row  int
	wait time.Duration
}

// ended notes the time that a supervisor lived, 0 if none could be started, and returns the pause before the next
// start. tell is true at the third failure in a row, when the user is warned.
func (r *respawns) ended(lived time.Duration) (wait time.Duration, tell bool) {
	if lived >= longLife {
		*r = respawns{}
		return 0, false
	}
	r.row++
	r.wait = min(max(pause, 2*r.wait), longestPause)
	return r.wait, r.row == 3
}

// pair is one supervisor's view of both.
type pair struct {
	own   *supervisor
	name  string // of this program, as it was called
	path  string // of the supervised program
	relay string // socket of the relay to converters, empty for none
	other *os.File
	// answering reports that this supervisor answers.
	answering bool
}

// firstOfPair creates the first supervisor, and starts the other.
func firstOfPair(listener int, name, path, relay string) (*pair, error) {
	shared, err := newBoard()
	if err != nil {
		return nil, err
	}
	own, err := newSupervisor(listener, shared, 0, relay)
	if err != nil {
		return nil, err
	}
	return &pair{own: own, name: name, path: path, relay: relay}, nil
}

// begin makes this supervisor answer from now on.
func (p *pair) begin() {
	if !p.answering {
		p.answering = true
		p.own.start()
	}
}

// secondOfPair creates a supervisor that the other one has started. side is its index on the board.
func secondOfPair(name, path, relay string, side int) (*pair, error) {
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
	own, err := newSupervisor(listenerFD, shared, side, relay)
	if err != nil {
		return nil, err
	}
	return &pair{own: own, name: name, path: path, relay: relay, other: os.NewFile(otherFD, "other")}, nil
}

// run returns when no process has the filter any more.
func (p *pair) run() error {
	go p.watch()
	return p.own.wait()
}

// watch starts the other supervisor, and again whenever it has ended.
func (p *pair) watch() {
	var row respawns
	for {
		started := time.Now()
		err := errSoonEnded
		if p.other == nil {
			if startErr := p.startOther(); startErr != nil {
				err = startErr // no memory, or no process available
			}
		}
		lived := time.Duration(0)
		if p.other != nil {
			awaitEnd(p.other)
			p.other = nil
			p.own.inherit(1 - p.own.side)
			p.begin()
			lived = time.Since(started)
		}
		wait, tell := row.ended(lived)
		if tell {
			p.warn(err)
		}
		time.Sleep(wait)
	}
}

var errSoonEnded = errors.New("it ends immediately after its start")

// warn writes to the system's log that only one supervisor is left. The program's terminal and files belong to the program.
func (p *pair) warn(err error) {
	log, dialErr := syslog.New(syslog.LOG_WARNING|syslog.LOG_DAEMON, "dcol-run")
	if dialErr != nil {
		return // this host has no such log
	}
	defer log.Close()
	_ = log.Warning(fmt.Sprintf("only one of the two supervisors of %s runs: %v. If that one ends, too, the program gets no more TCP sockets: "+
		"check whether this host lacks memory or processes, or what kills them, and restart the program", p.path, err))
}

// startOther starts the other supervisor from this one's own executable, which may have been replaced on disk.
func (p *pair) startOther() error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "other"), os.NewFile(uintptr(ends[1]), "own")
	defer theirs.Close()
	// Duplicate it, because closing an os.File of the listener would close the listener.
	listener, err := unix.FcntlInt(uintptr(p.own.listener), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		ours.Close()
		return os.NewSyscallError("fcntl", err)
	}
	handed := os.NewFile(uintptr(listener), "listener")
	defer handed.Close()
	cmd := exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{p.name, stageMark, stageSecond, p.path, p.relay, fmt.Sprint(1 - p.own.side)},
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

// awaitEnd returns when the process at the other end has ended with all its threads, and closes our end.
func awaitEnd(end *os.File) {
	defer end.Close()
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Read(int(end.Fd()), make([]byte, 1))
	}
}

// inherit answers the calls that the supervisor at index side had received but not answered when it ended.
func (s *supervisor) inherit(side int) {
	leads := s.shared.leads[side][:]
	for i := range s.shared.calls[side] {
		call := &s.shared.calls[side][i]
		// A call that is also among the leads is answered there. Its supervisor was killed between adding and removing it.
		if call.id == 0 || slices.ContainsFunc(leads, func(l lead) bool { return l.call.id == call.id }) {
			call.id = 0
			continue
		}
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			s.answer(call)
			call.id = 0
		}()
		select {
		case <-answered:
		case <-time.After(relievedAfter): // the other calls do not wait for it
		}
	}
	for i := range leads {
		s.takeOver(&leads[i])
	}
}
