package crowd

import (
	"fmt"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
)

// spareFiles is how many files a process opens beside one for each member.
const spareFiles = 500

// raiseFiles lets this process have as many open files as may be, and says how many members that is. It asks
// for a million, which a process without the right to go over the hard limit does not get.
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

// settle gives back what memory is free and says what is not.
func settle() Memory {
	debug.FreeOSMemory()
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return Memory{Heap: int64(s[0].Value.Uint64() + s[1].Value.Uint64())}
}
