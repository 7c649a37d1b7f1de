package crowd

import (
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
)

// spareFiles is the number of files that a process opens besides one for each member.
const spareFiles = 500

// raiseFiles raises this process's limit of open files and returns the number of members it suffices for. It
// asks for a million. Without the right to exceed the hard limit, the process gets the hard limit.
func raiseFiles() (members int, err error) {
	const plenty = 1 << 20
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if l.Max < plenty && syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: plenty, Max: plenty}) == nil {
		return plenty - spareFiles, nil
	}
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("raise the limit of open files: %w", err)
	}
	return int(min(l.Max, plenty)) - spareFiles, nil
}

// settle returns free memory to the system and reports the memory in use.
func settle() Memory {
	debug.FreeOSMemory()
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return Memory{Heap: int64(s[0].Value.Uint64() + s[1].Value.Uint64())}
}
