package mptcpify

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The answers to a program's calls are system calls that return soon. They are made without telling Go's scheduler
// (unix.RawSyscall): if a call that it knows takes more than 20 µs, it gives the processor away, and the thread has to wait
// until it gets it back. Nothing else of this process runs meanwhile. That delays nobody: programs wait for these calls.
// Calls that may have to wait for something, as for a caller's memory, are not made so.

// quickly makes such a call, without pointers among its arguments.
func quickly(call, arg0, arg1, arg2 uintptr) (uintptr, error) {
	value, _, errno := unix.RawSyscall(call, arg0, arg1, arg2)
	if errno != 0 {
		return 0, errno
	}
	return value, nil
}

func closeQuickly(fd int) { _, _ = quickly(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

func statQuickly(path string, st *unix.Stat_t) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	current := unix.AT_FDCWD
	_, _, errno := unix.RawSyscall6(unix.SYS_NEWFSTATAT, uintptr(current), uintptr(unsafe.Pointer(name)),
		uintptr(unsafe.Pointer(st)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
