package mptcpify

import (
	"io"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readMemory fills b from the memory of a caller. It may wait until the kernel has fetched that memory, so Go's
// scheduler is told of the call.
func readMemory(tid uint32, address uint64, b []byte) error {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(tid), uintptr(unsafe.Pointer(&local[0])), 1,
		uintptr(unsafe.Pointer(&remote[0])), 1, 0)
	switch {
	case errno != 0:
		return errno
	case int(n) != len(b):
		return io.ErrUnexpectedEOF
	}
	return nil
}

// openMemory opens the memory of a caller for reading and writing. The file refers to the same process even after the
// thread's number is reused.
func openMemory(tid uint32) (*os.File, error) {
	return os.OpenFile("/proc/"+strconv.FormatUint(uint64(tid), 10)+"/mem", os.O_RDWR, 0)
}

func rawPointer(a *unix.RawSockaddr) uintptr { return uintptr(unsafe.Pointer(a)) }
