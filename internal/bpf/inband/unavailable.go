package inband

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// UnavailableError says why this host does not take the programs, and what
// would mend it.
type UnavailableError struct {
	Mend string
	Err  error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("in-band detours cannot be used here: %v (%s)", e.Err, e.Mend)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

const mendKernel = "needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF, CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS"

// unavailable names the mend where the kernel's answer allows it.
func unavailable(err error) error {
	mend := "unexpected: please report it with `uname -a`"
	var rejected *ebpf.VerifierError
	switch {
	case errors.As(err, &rejected):
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		mend = mendRights()
	case errors.Is(err, unix.E2BIG):
		mend = "the cgroup has as many programs as it takes: give each agent a cgroup of its own"
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS),
		errors.Is(err, unix.ENOENT), errors.Is(err, os.ErrNotExist):
		mend = mendKernel
	}
	return &UnavailableError{Mend: mend, Err: err}
}

// mendRights says which capabilities the thread lacks, or that the refusal has
// another cause.
func mendRights() string {
	const policy = "the capabilities are there, so a policy forbids it: the kernel's lockdown, a security module, or a seccomp filter (systemd: SystemCallFilter=bpf)"
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return "needs CAP_BPF and CAP_NET_ADMIN"
	}
	has := func(c int) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	var lacking []string
	if !has(unix.CAP_NET_ADMIN) {
		lacking = append(lacking, "CAP_NET_ADMIN")
	}
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		lacking = append(lacking, "CAP_BPF")
	}
	if len(lacking) == 0 {
		return policy
	}
	return "give the agent " + strings.Join(lacking, " and ")
}
