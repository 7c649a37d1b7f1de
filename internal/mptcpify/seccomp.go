package mptcpify

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// notification is the kernel's struct seccomp_notif with its seccomp_data:
// a system call that waits for an answer (seccomp_unotify(2)).
type notification struct {
	id   uint64
	tid  uint32 // in our pid namespace; 0 if the thread is not in it
	_    uint32
	call int32  // number of the system call
	_    uint32 // architecture
	_    uint64 // instruction pointer
	args [6]uint64
}

// answer is struct seccomp_notif_resp.
type answer struct {
	id    uint64
	value int64 // result of the system call
	fault int32 // or its error, negative
	flags uint32
}

// fdAnswer is struct seccomp_notif_addfd.
type fdAnswer struct {
	id         uint64
	flags      uint32
	srcFD      uint32
	newFD      uint32 // with SECCOMP_ADDFD_FLAG_SETFD: the number
	newFDFlags uint32
}

// installFilter installs the filter permanently on the calling thread, which must be locked, and returns the
// listener, which is closed on exec.
func installFilter(program []bpf.Instruction) (int, error) {
	filter, err := assemble(program)
	if err != nil {
		return 0, err
	}
	fd, err := setFilter(filter)
	if errors.Is(err, unix.EACCES) {
		// Without CAP_SYS_ADMIN, setting a filter requires that the thread can gain no privileges.
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return 0, unavailable(os.NewSyscallError("prctl(PR_SET_NO_NEW_PRIVS)", err))
		}
		fd, err = setFilter(filter)
	}
	if err != nil {
		return 0, unavailable(os.NewSyscallError("seccomp", err))
	}
	hasten(fd)
	return fd, nil
}

// hasten tells the kernel that caller and supervisor run by turns, so that it wakes both on one processor. That saves
// some ten microseconds a call. Kernels before 6.6 cannot do it.
func hasten(listener int) {
	const (
		setFlags   = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS of linux/seccomp.h
		syncWakeUp = 1          // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
	)
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), setFlags, syncWakeUp)
}

func setFilter(filter []unix.SockFilter) (int, error) {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER |
		// Go's runtime sends itself many signals, which must not interrupt a call that the supervisor works on. Since
		// 5.19, like the userspace path manager.
		unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV |
		// The filter is no sandbox. Without this, kernels before 5.16 slow the program down as if it were in one.
		unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

func unavailable(err error) error {
	fix := "use programs that request MPTCP themselves, see `dcol doctor`"
	switch {
	case errors.Is(err, unix.EBUSY):
		fix = "another program, perhaps a container engine, already supervises this process's system calls: run dcol outside of it"
	case errors.Is(err, unix.EINVAL):
		fix = "needs Linux 5.19 or newer"
	case errors.Is(err, unix.ENOSYS):
		fix = "needs a kernel with CONFIG_SECCOMP_FILTER"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		fix = "allow the seccomp system call in the policy of this container or service"
	}
	return &UnavailableError{Method: "seccomp", Fix: fix, Err: err}
}

// receive waits for the next system call. n must be zero. The kernel fills it before it handles a signal, even SIGKILL.
func receive(listener int, n *notification) error {
	*n = notification{}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(n)))
	if errno != 0 {
		return errno
	}
	return nil
}

// answerContinue lets the kernel execute the call as if there were no filter.
func answerContinue(listener int, id uint64) error {
	a := answer{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	return send(listener, &a)
}

// answerResult makes the call return 0, or fail with an error.
func answerResult(listener int, id uint64, errno unix.Errno) error {
	a := answer{id: id, fault: -int32(errno)}
	return send(listener, &a)
}

// stillWaits reports whether the caller still waits for the answer. If so, a file that was opened before by the
// caller's thread number belongs to the caller. Otherwise the number may have been reused. Ids are never reused.
func stillWaits(listener int, id uint64) bool {
	return retry(func() error { return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)) }) == nil
}

// answerFD installs fd in the caller and makes the call return its number there. It does not use
// SECCOMP_ADDFD_FLAG_SEND (since 5.14), which does both in one step, because that marks the call as answered before
// it installs the file. If this process were killed in between, the call would return file 0.
func answerFD(listener int, id uint64, fd int, closeOnExec bool) error {
	install := fdAnswer{id: id, srcFD: uint32(fd)}
	if closeOnExec {
		install.newFDFlags = unix.O_CLOEXEC
	}
	for {
		number, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(&install)))
		switch errno {
		case 0:
			return send(listener, &answer{id: id, value: int64(number)})
		case unix.EINTR: // a signal came before the file was installed
		default:
			return errno
		}
	}
}

// send answers a call, even if this thread gets a signal meanwhile.
func send(listener int, a *answer) error {
	return retry(func() error { return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(a)) })
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
