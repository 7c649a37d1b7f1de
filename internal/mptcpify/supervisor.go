package mptcpify

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// workers is the number of sockets that each supervisor makes at a time. One thread is enough for one busy program;
// more threads prevent a slow call (a busy namespace, scarce memory) from delaying the next.
const workers = 2

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
	failed     chan error
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
	return &supervisor{
		listener: listener,
		shared:   shared,
		side:     side,
		home:     home,
		homeID:   homeID,
		owners:   os.Geteuid() == 0,
		forks:    forks,
		failed:   make(chan error, workers),

		converting: newConverting(relay, &shared.leads[side]),
	}, nil
}

func (s *supervisor) start() {
	for i := range workers {
		go s.work(&s.shared.calls[s.side][i])
	}
}

// wait returns when the last thread with the filter has ended. The workers are then still blocked in the kernel
// (before 6.7 it does not wake them), so the process must end.
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

// errAstray means that a worker's thread could not return from another network namespace.
var errAstray = errors.New("thread is in a foreign network namespace")

// work answers one call after the other. The shared memory call holds the unanswered one, for the other supervisor.
func (s *supervisor) work(call *notification) {
	// Never unlocked, so a thread in another namespace, or with blocked signals, ends with its worker.
	runtime.LockOSThread()
	if err := blockSignals(); err != nil {
		s.failed <- err
		return
	}
	for {
		switch err := receive(s.listener, call); {
		case err == nil:
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
			// A signal, or the caller was killed meanwhile.
			continue
		default:
			s.failed <- fmt.Errorf("receive a system call: %w", err)
			return
		}
		err := s.answer(call)
		call.id = 0
		if errors.Is(err, errAstray) {
			go s.work(call)
			return
		}
	}
}

// blockSignals blocks all signals in the calling thread; Go's runtime sends itself many. A signal would interrupt the
// installation of a socket, and the caller would get a plain TCP socket.
func blockSignals() error {
	var all unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, nil); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	return nil
}

// answer answers any call of which the filter notifies.
func (s *supervisor) answer(n *notification) error {
	switch n.call {
	case unix.SYS_CONNECT:
		return s.connect(n)
	case unix.SYS_GETPEERNAME:
		return s.getpeername(n)
	}
	return s.socket(n)
}

// socket gives the caller an MPTCP socket. If that is not possible, the kernel executes the original call, with the
// same result as without dcol. An error from either ioctl means that the caller is gone.
//
// The caller cannot change its namespace or user meanwhile, because it waits in the call. If it is killed and its
// thread number is reused, the socket is discarded: answers use the id, which is never reused.
func (s *supervisor) socket(n *notification) error {
	fd, err := s.socketFor(n)
	if err != nil {
		_ = answerContinue(s.listener, n.id)
		return err
	}
	defer unix.Close(fd)
	if s.converting != nil {
		s.noteMade(n.tid, fd)
	}
	closeOnExec := n.args[1]&unix.SOCK_CLOEXEC != 0
	if err := answerFD(s.listener, n.id, fd, closeOnExec); err != nil {
		return answerContinue(s.listener, n.id)
	}
	return nil
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

// giveTo makes the caller's user the owner of a socket. We made it, but firewall rules and ss must see the program's
// user.
func (s *supervisor) giveTo(tid uint32, fd int) error {
	if !s.owners {
		return nil
	}
	uid, gid, err := userOf(tid)
	if err == nil && (uid != 0 || gid != 0) {
		err = unix.Fchown(fd, uid, gid)
	}
	return err
}

// socketAbroad makes the socket in the caller's network namespace. That needs CAP_SYS_ADMIN in it, which an ordinary
// user does not have.
func (s *supervisor) socketAbroad(n *notification) (int, error) {
	namespace, err := unix.Open(namespacePath(n.tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(namespace)
	if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
		return 0, err
	}
	fd, err := mptcpSocket(n)
	// A thread that stayed would keep the namespace alive after its last process.
	if back := unix.Setns(s.home, unix.CLONE_NEWNET); back != nil {
		if err == nil {
			unix.Close(fd)
		}
		return 0, errors.Join(errAstray, back)
	}
	return fd, err
}

// mptcpSocket makes the requested socket with the protocol MPTCP.
func mptcpSocket(n *notification) (int, error) {
	nonblock := int(n.args[1]) & unix.SOCK_NONBLOCK
	return unix.Socket(int(n.args[0]), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|nonblock, unix.IPPROTO_MPTCP)
}
