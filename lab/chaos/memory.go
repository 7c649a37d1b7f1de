package chaos

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/prometheus/procfs"
)

// checkMemory returns an error if all sockets of this machine together hold so much memory that the kernel takes it
// away from connections (net.ipv4.tcp_mem, the second value). What breaks then shows nothing about the product:
// other programs, or other worlds, may hold it.
func checkMemory() error {
	procFS, err := procfs.NewDefaultFS()
	if err != nil {
		return fmt.Errorf("read this machine's memory for TCP: %w", err)
	}
	limits, err := procFS.SysctlInts("net.ipv4.tcp_mem")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // only the machine's first network namespace has it: chaos may run in a container
	}
	if err != nil {
		return fmt.Errorf("read this machine's memory for TCP: %w", err)
	}
	used, err := procFS.NetSockstat()
	if err != nil {
		return fmt.Errorf("read this machine's memory for TCP: %w", err)
	}
	for _, p := range used.Protocols {
		if p.Protocol == "TCP" && p.Mem != nil && len(limits) == 3 && *p.Mem > limits[1] {
			return fmt.Errorf("TCP holds %d pages on this machine, more than %d (net.ipv4.tcp_mem): end other programs, or run fewer worlds", *p.Mem, limits[1])
		}
	}
	return nil
}
