package mptcpify

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// To answer a program's call, the supervisor makes system calls that return soon. It does not tell Go's scheduler of
// them (unix.RawSyscall). For a call that it is told of, the scheduler gives the processor away after 20 µs, and the
// thread has to wait to get it back. Meanwhile nothing else of this process runs, which delays nobody, because programs
// wait for these calls. Calls that may wait for something, such as a caller's memory, are made in the usual way.

// quickly makes a system call without telling Go's scheduler. No argument may be a pointer.
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
