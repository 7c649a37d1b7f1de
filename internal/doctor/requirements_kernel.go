package doctor

import (
	"context"
	"errors"
	"io/fs"
	"strings"
)

// kernelChecks returns the checks of privileges and of kernel features other than MPTCP.
func kernelChecks() []Check {
	return []Check{
		{"rights", "Rights of this user", checkRights},
		{"ebpf", "eBPF", checkBPF},
		{"cgroup", "Cgroups", checkCgroup},
		{"tun", "TUN devices", checkTUN},
	}
}

type capability struct {
	name string
	bit  int // in CapEff, see linux/capability.h
}

var (
	capNetAdmin = capability{"CAP_NET_ADMIN", 12}
	capNetRaw   = capability{"CAP_NET_RAW", 13}
	capSysAdmin = capability{"CAP_SYS_ADMIN", 21}
	capPerfMon  = capability{"CAP_PERFMON", 38}
	capBPF      = capability{"CAP_BPF", 39}
)

func checkRights(_ context.Context, e *Env) Result {
	bits, err := e.effective()
	if err != nil {
		return skipped("cannot read this process's capabilities: %v", err)
	}
	names := missing(bits, capNetAdmin)
	switch {
	case names != "" && errors.Is(e.AgentUnasked, fs.ErrPermission): // it belongs to another user
		return skipped("this user lacks %s, which the agent needs (`dcol run` does not): sudo dcol doctor", names)
	case names != "":
		return failed("run the agent, and `dcol doctor`, as root", "this user lacks %s, which the agent needs (`dcol run` does not)", names)
	}
	if names = missing(bits, capNetRaw, capSysAdmin, capBPF, capPerfMon); names != "" {
		return info("enough for the agent, but without %s the eBPF parts (in-band detours need CAP_BPF) and the lab do not work", names)
	}
	return ok("all that dcol needs")
}

func missing(bits uint64, wanted ...capability) string {
	var names []string
	for _, c := range wanted {
		if bits&(1<<c.bit) == 0 {
			names = append(names, c.name)
		}
	}
	return strings.Join(names, ", ")
}

func checkBPF(_ context.Context, e *Env) Result {
	_, err := fs.Stat(e.FS, "sys/kernel/btf/vmlinux")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return info("no type information (CONFIG_DEBUG_INFO_BTF): the hook that makes sockets MPTCP cannot be used")
	case err != nil:
		return skipped("cannot look for the kernel's type information: %v", err)
	}
	return ok("the kernel carries its type information (BTF)")
}

func checkCgroup(_ context.Context, e *Env) Result {
	places, err := e.mountsOf("cgroup2")
	switch {
	case err != nil:
		return skipped("cannot read the mount table: %v", err)
	case len(places) == 0:
		return optional("mount -t cgroup2 none /sys/fs/cgroup, or another empty folder",
			"version 2 is not mounted: this host has no in-band detours, programs that make requests keep silent detours, slow detours can delay uploads, and the hook that makes sockets MPTCP cannot be limited to a cgroup")
	}
	return ok("version 2 at %s", places[0])
}

func checkTUN(_ context.Context, e *Env) Result {
	if _, err := fs.Stat(e.FS, "dev/net/tun"); err != nil {
		return optional("modprobe tun", "no /dev/net/tun: OpenVPN needs it, and so do WireGuard and the lab's links if the kernel has no WireGuard and no netem")
	}
	return ok("/dev/net/tun is there")
}
