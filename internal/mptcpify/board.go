package mptcpify

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// board is memory that the two supervisors share.
type board struct {
	file *os.File
	*entries

	// peersMu guards peers within this process: goroutines that lead write while workers read.
	peersMu sync.RWMutex
	// madeMu guards made within this process: goroutines that lead read while a worker writes.
	madeMu sync.Mutex
}

// entries is the content of the board. Each supervisor writes only at its index.
type entries struct {
	// calls holds the system call that each worker is answering, so that the other supervisor can answer it if this one
	// is killed. The kernel gives a call to one receiver only.
	calls [supervisors][workers]notification
	// leads holds the connect() calls that are being led to a converter.
	leads [supervisors][maxLeads]lead
	// peers holds the servers of sockets that were led to a converter or the relay.
	peers [supervisors]peerTable
	// made holds sockets that were just made, to tell whether another process can have them, too.
	made [supervisors]madeTable
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
	if err := file.Truncate(int64(unsafe.Sizeof(entries{}))); err != nil {
		file.Close()
		return nil, fmt.Errorf("make memory that supervisors share: %w", err)
	}
	return openBoard(file)
}

// openBoard opens a board that another process made.
func openBoard(file *os.File) (*board, error) {
	memory, err := unix.Mmap(int(file.Fd()), 0, int(unsafe.Sizeof(entries{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &board{file: file, entries: (*entries)(unsafe.Pointer(&memory[0]))}, nil
}
