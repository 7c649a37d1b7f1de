package tcfilter

import (
	"cmp"
	"errors"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// FixFor returns advice for a kernel that refused programs with err. kernel describes what the programs need.
func FixFor(err error, kernel string) string {
	var rejected *ebpf.VerifierError
	lacking := lackingRights()
	switch {
	case errors.As(err, &rejected):
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		if lacking == "" {
			return "the capabilities are there, so a policy forbids it: the kernel's lockdown, a security module, or a seccomp filter (systemd: SystemCallFilter=bpf)"
		}
		return lacking
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS),
		errors.Is(err, unix.ENOENT), errors.Is(err, os.ErrNotExist):
		// Without rights, the library's tests of the kernel fail, too.
		return cmp.Or(lacking, kernel)
	}
	return "unexpected: please report it with `uname -a`"
}

// lackingRights returns advice that names the missing capabilities of the thread, or an empty string if none is
// missing.
func lackingRights() string {
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
		return ""
	}
	return "give the agent " + strings.Join(lacking, " and ")
}
