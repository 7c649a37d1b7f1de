package mptcpify

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// board is memory that the two supervisors share. It holds the system call that each worker is answering, so that a
// supervisor can answer the calls of one that was killed: the kernel gives a call to one receiver only.
type board struct {
	file  *os.File
	calls *[supervisors][workers]notification
}

// supervisors is the number of processes that answer for one filter.
const supervisors = 2

// newBoard returns an empty board.
func newBoard() (*board, error) {
	fd, err := unix.MemfdCreate("mptcpify", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "board")
	if err := file.Truncate(int64(unsafe.Sizeof(*board{}.calls))); err != nil {
		file.Close()
		return nil, fmt.Errorf("make memory that supervisors share: %w", err)
	}
	return openBoard(file)
}

// openBoard opens a board that another process made.
func openBoard(file *os.File) (*board, error) {
	b := &board{file: file}
	memory, err := unix.Mmap(int(file.Fd()), 0, int(unsafe.Sizeof(*b.calls)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	b.calls = (*[supervisors][workers]notification)(unsafe.Pointer(&memory[0]))
	return b, nil
}
