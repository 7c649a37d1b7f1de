package mptcpify

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// workers bounds the calls that each supervisor answers at a time. All but one wait for a caller's memory.
	workers = 16
	// relievedAfter is the time after which another worker takes the next calls, if a call that accesses its caller's
	// memory is not answered yet. That memory may be a file whose server is away.
	relievedAfter = 50 * time.Millisecond
)

// supervisor answers the filter's notifications until no process has the filter any more.
type supervisor struct {
	listener int
	shared   *board
	side     int // our index on the board
	home     int // our network namespace
	homeID   namespaceID
	owners   bool // callers may run as other users
	// converting is nil if connect() is not notified.
	converting *converting
	forks      *forks
	threads    threads
	failed     chan error
	// places has the indexes in the board's calls that no worker uses now.
	places chan int
}

// newSupervisor creates a supervisor. relay is the socket of the relay to converters, empty for none.
func newSupervisor(listener int, shared *board, side int, relay string) (*supervisor, error) {
	home, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open this network namespace: %w", err)
	}
	homeID, err := namespaceOf(uint32(os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("check the network namespace: %w", err)
	}
	forks, err := openForks()
	if err != nil {
		return nil, err
	}
	places := make(chan int, workers)
	for i := range workers {
		places <- i
	}
	return &supervisor{
		listener: listener,
		shared:   shared,
		side:     side,
		home:     home,
		homeID:   homeID,
		owners:   os.Geteuid() == 0,
		forks:    forks,
		threads:  threads{seen: map[uint32]time.Time{}},
		failed:   make(chan error, 1),
		places:   places,

		converting: newConverting(relay, &shared.leads[side]),
	}, nil
}

func (s *supervisor) start() { s.relieve() }

// relieve starts another worker, which takes the next calls. It reports false if all workers are in use.
func (s *supervisor) relieve() bool {
	select {
	case place := <-s.places:
		go s.work(place)
		return true
	default:
		return false
	}
}

// wait returns when the last thread with the filter has ended. A worker is then still blocked in the kernel, which does
// not wake it before 6.7, so the process must end.
func (s *supervisor) wait() error {
	gone := make(chan error, 1)
	go func() {
		// Hang-up is always reported. Requesting nothing else lets this thread sleep while calls arrive.
		poll := []unix.PollFd{{Fd: int32(s.listener)}}
		var err error
		// A signal during the call is reported as POLLERR.
		for err == nil && poll[0].Revents&unix.POLLHUP == 0 {
			err = retry(func() error {
				_, err := unix.Poll(poll, -1)
				return err
			})
		}
		gone <- err
	}()
	select {
	case err := <-gone:
		return os.NewSyscallError("poll", err)
	case err := <-s.failed:
		// The other supervisor continues, and starts a new one.
		return err
	}
}

// work answers one call after the other, until one takes long and another worker takes the next. place is the index in
// the board's calls where the other supervisor finds the unanswered call.
//
// Only one worker waits for calls. The kernel would wake all that wait, and the program would run after them. The
// goroutine is not locked to its thread. When it wakes after a pause, Go's runtime believes that it has run all the
// time and makes it yield, which takes two more thread switches for a locked goroutine.
func (s *supervisor) work(place int) {
	call := &s.shared.calls[s.side][place]
	for relieved := false; !relieved; {
		switch err := receive(s.listener, call); {
		case err == nil:
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
			// A signal, or the caller was killed meanwhile.
			continue
		default:
			s.failed <- fmt.Errorf("receive a system call: %w", err)
			return
		}
		relieved = s.answerSoon(call)
		call.id = 0
	}
	s.places <- place
}

// answerSoon answers a call. It reports whether that took long, so that another worker takes the next calls. Only calls
// that access their caller's memory can take long. The others get no timer, which would wake another thread.
func (s *supervisor) answerSoon(n *notification) (relieved bool) {
	switch {
	case n.call == unix.SYS_GETPEERNAME && !s.shared.hasPeers():
		_ = answerContinue(s.listener, n.id)
		return false
	case n.call == unix.SYS_SOCKET:
		s.answer(n)
		return false
	}
	decided := make(chan bool, 1)
	late := time.AfterFunc(relievedAfter, func() { decided <- s.relieve() })
	s.answer(n)
	return !late.Stop() && <-decided
}

// answer answers a call of any kind.
func (s *supervisor) answer(n *notification) {
	switch n.call {
	case unix.SYS_CONNECT:
		s.connect(n)
	case unix.SYS_GETPEERNAME:
		s.getpeername(n)
	default:
		s.socket(n)
	}
}

// socket gives the caller an MPTCP socket. If that is not possible, the kernel executes the original call, with the
// same result as without dcol. An error from either ioctl means that the caller is gone.
//
// The caller cannot change its namespace or user meanwhile, because it waits in the call. If it is killed and its
// thread number is reused, the socket is discarded: answers use the id, which is never reused.
func (s *supervisor) socket(n *notification) {
	fd, err := s.socketFor(n)
	if err != nil {
		_ = answerContinue(s.listener, n.id)
		return
	}
	defer closeQuickly(fd)
	if s.converting != nil && !s.threads.isSeveral(n.tid, time.Now()) {
		s.noteMade(n.tid, fd)
	}
	closeOnExec := n.args[1]&unix.SOCK_CLOEXEC != 0
	if err := answerFD(s.listener, n.id, fd, closeOnExec); err != nil {
		_ = answerContinue(s.listener, n.id)
	}
}

func (s *supervisor) socketFor(n *notification) (int, error) {
	namespace, err := namespaceOf(n.tid)
	if err != nil {
		return 0, err
	}
	var fd int
	if namespace == s.homeID {
		fd, err = mptcpSocket(n)
	} else {
		fd, err = s.socketAbroad(n)
	}
	if err != nil {
		return 0, err
	}
	if err := s.giveTo(n.tid, fd); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// giveTo makes the caller's user the owner of a socket, for firewall rules and ss.
func (s *supervisor) giveTo(tid uint32, fd int) error {
	if !s.owners {
		return nil
	}
	uid, gid, err := userOf(tid)
	if err == nil && (uid != 0 || gid != 0) {
		_, err = quickly(unix.SYS_FCHOWN, uintptr(fd), uintptr(uid), uintptr(gid))
	}
	return err
}

// socketAbroad makes the socket in the caller's network namespace. That needs CAP_SYS_ADMIN in it, which an ordinary
// user does not have.
func (s *supervisor) socketAbroad(n *notification) (fd int, err error) {
	namespace, err := unix.Open(namespacePath(n.tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(namespace)
	made := make(chan struct{})
	go func() {
		defer close(made)
		runtime.LockOSThread()
		if err = unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			return
		}
		fd, err = mptcpSocket(n)
		// A thread that stays in the namespace would keep it alive after its last process. If the thread cannot return,
		// it ends with this goroutine, because it remains locked.
		if unix.Setns(s.home, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	<-made
	return fd, err
}

// mptcpSocket makes the requested socket with the protocol MPTCP.
func mptcpSocket(n *notification) (int, error) {
	flags := unix.SOCK_STREAM | unix.SOCK_CLOEXEC | int(n.args[1])&unix.SOCK_NONBLOCK
	fd, err := quickly(unix.SYS_SOCKET, uintptr(uint32(n.args[0])), uintptr(flags), unix.IPPROTO_MPTCP)
	return int(fd), err
}
