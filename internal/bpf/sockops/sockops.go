// Package sockops has what our sockops programs share: the cgroup whose sockets they see, and how they
// tell the sockets of one network namespace from those of others. Only packages below internal/bpf may
// import it.
package sockops

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Attach puts a program to work on the sockets of a cgroup, until the link is closed or its process ends.
func Attach(cgroup *os.File, program *ebpf.Program) (link.Link, error) {
	// Not link.AttachCgroup: what that falls back to would outlive the process.
	attached, err := link.AttachRawLink(link.RawLinkOptions{
		Target: int(cgroup.Fd()), Program: program, Attach: ebpf.AttachCGroupSockOps,
	})
	if err != nil {
		return nil, fmt.Errorf("attach the program to the cgroup %s: %w", cgroup.Name(), err)
	}
	return attached, nil
}

// NamespaceCookie tells the thread's network namespace from all others of this
// kernel, for as long as it runs.
func NamespaceCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("ask for the namespace's cookie: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("ask for the namespace's cookie: %w", err)
	}
	return cookie, nil
}
