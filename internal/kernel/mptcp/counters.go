package mptcp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// counters reads the kernel's statistics of one network namespace: that of the thread that opened the file.
type counters struct {
	file *os.File
	err  error // the error of opening the file
}

// openCounters does not fail. Without the file in /proc only counting fails.
func openCounters() counters {
	file, err := os.Open("/proc/thread-self/net/netstat")
	if err != nil {
		return counters{err: fmt.Errorf("open the kernel's counters: %w", err)}
	}
	return counters{file: file}
}

func (c counters) close() error {
	if c.file == nil {
		return nil
	}
	return c.file.Close()
}

// ChecksumErrors implements Kernel.
func (n *Namespace) ChecksumErrors() (uint64, error) {
	n.countersMu.Lock()
	defer n.countersMu.Unlock()
	return n.counters.read("DataCsumErr")
}

// read returns one of MPTCP's counters.
func (c counters) read(name string) (uint64, error) {
	if c.err != nil {
		return 0, c.err
	}
	text, err := io.ReadAll(io.NewSectionReader(c.file, 0, 1<<20))
	if err != nil {
		return 0, fmt.Errorf("read the kernel's counters: %w", err)
	}
	return ParseCounter(string(text), name)
}

// ParseCounter returns one of MPTCP's counters from the text of /proc/net/netstat, in which each group has a line of names
// followed by a line of values.
func ParseCounter(text, name string) (uint64, error) {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != "MPTcpExt:":
		case names == nil:
			names = fields
		default:
			for i, n := range names {
				if n == name && i < len(fields) {
					return strconv.ParseUint(fields[i], 10, 64)
				}
			}
			return 0, fmt.Errorf("the kernel does not count %s", name)
		}
	}
	return 0, errors.New("the kernel has no counters of MPTcpExt")
}
