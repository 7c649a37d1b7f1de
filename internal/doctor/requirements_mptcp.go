package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/internal/kernel/bpf/option"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// mptcpChecks returns the checks of the kernel's Multipath TCP.
func mptcpChecks() []Check {
	return []Check{
		{"kernel", "Linux version", checkKernel},
		{"mptcp", "MPTCP in the kernel", checkMPTCP},
		{"userspace-pm", "Userspace path manager", checkUserspacePM},
		{"path-manager", "Active path manager", checkActivePM},
		{"competitors", "Competing path managers", checkCompetitors},
		{"kernel-limits", "Limits of this kernel", checkLimits},
		{"join", "Joins to the initial address", checkJoin},
		{"checksums", "MPTCP checksums", checkChecksums},
		{"blackhole", "MPTCP after an outage", checkBlackhole},
		{"fallback", "Connections that become plain TCP", checkFallback},
		{"congestion", "Congestion control", checkCongestion},
		{"tcp-options", "TCP options", checkOptions},
	}
}

// userspacePMSince is the first kernel with the generic netlink path manager.
const userspacePMSince = "5.19"

func checkKernel(_ context.Context, e *Env) Result {
	release, err := e.sysctl("kernel/osrelease")
	if err != nil {
		return skipped("cannot read the kernel's release: %v", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return skipped("cannot understand the kernel's release %q", release)
	}
	if major < 5 || major == 5 && minor < 19 {
		return failed("boot Linux "+userspacePMSince+" or newer (Debian 12 has 6.1)", "Linux %s has no userspace path manager for MPTCP", release)
	}
	return ok("Linux %s", release)
}

func checkLimits(_ context.Context, e *Env) Result {
	release, err := e.sysctl("kernel/osrelease")
	if err != nil {
		return skipped("cannot read the kernel's release: %v", err)
	}
	limits, err := mptcp.LimitsOf(release)
	if err != nil {
		return skipped("cannot understand the kernel's release %q", release)
	}
	if len(limits) == 0 {
		return ok("none known to dcol")
	}
	var said []string
	for _, l := range limits {
		said = append(said, fmt.Sprintf("%s (since Linux %s): %s", l.Name, l.MinKernel, l.Price))
	}
	return info("lacks %s (docs/kernel-versions.md)", strings.Join(said, "; lacks "))
}

func checkMPTCP(_ context.Context, e *Env) Result {
	enabled, err := e.sysctl("net/mptcp/enabled")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failed("boot a kernel with CONFIG_MPTCP=y (Debian's has it)", "this kernel is built without MPTCP")
	case err != nil:
		return failed("run `dcol doctor` as root", "cannot read net.mptcp.enabled: %v", err)
	case enabled != "1":
		return failed("sysctl -w net.mptcp.enabled=1", "net.mptcp.enabled is %s", enabled)
	}
	return ok("compiled in and enabled")
}

func checkUserspacePM(_ context.Context, e *Env) Result {
	// Since 6.15 the kernel lists them by name.
	if managers, err := e.sysctl("net/mptcp/available_path_managers"); err == nil {
		if slices.Contains(strings.Fields(managers), "userspace") {
			return ok("available (net.mptcp.available_path_managers = %s)", managers)
		}
	} else if _, err := e.sysctl("net/mptcp/pm_type"); err == nil {
		return ok("available (net.mptcp.pm_type)")
	}
	return failed("boot Linux "+userspacePMSince+" or newer with CONFIG_MPTCP=y", "the kernel has none, so dcol cannot add subflows")
}

// activePM returns the path manager of new MPTCP sockets.
func (e *Env) activePM() (string, error) {
	if name, err := e.sysctl("net/mptcp/path_manager"); err == nil {
		return name, nil
	}
	number, err := e.sysctl("net/mptcp/pm_type")
	if err != nil {
		return "", err
	}
	if name, ok := map[string]string{"0": "kernel", "1": "userspace"}[number]; ok {
		return name, nil
	}
	return "of type " + number, nil
}

func checkActivePM(_ context.Context, e *Env) Result {
	active, err := e.activePM()
	client := e.AgentRuns && e.Config.Client
	switch {
	case err != nil:
		return skipped("cannot read the active path manager: %v", err)
	case e.AgentUnasked != nil:
		return e.untold("%s; it should be userspace while the agent runs, and kernel otherwise", active)
	case active == "userspace" && client:
		return ok("userspace, and the agent runs")
	case active == "userspace":
		return warning("start the agent, or: sysctl -w net.mptcp.pm_type=0",
			"userspace, but no agent with the client role runs: unless another program listens, the kernel refuses joins of peers")
	case client:
		return failed("find what sets net.mptcp.pm_type (sysctl.d, NetworkManager, another daemon), then restart the agent",
			"the agent runs, but new connections get the path manager %q", active)
	case active == "kernel":
		return ok("kernel; the agent switches to userspace while it runs")
	}
	return warning("sysctl -w net.mptcp.pm_type=0", "%q; the agent switches to userspace while it runs", active)
}

func checkCompetitors(_ context.Context, e *Env) Result {
	programs := e.running("mptcpd", "NetworkManager")
	if slices.Contains(programs, "mptcpd") {
		return warning("systemctl disable --now mptcp.service", "mptcpd runs: it and the agent would both manage the same connections")
	}
	endpoints, err := e.System.Endpoints()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return skipped("needs root to list the endpoints of the kernel's path manager")
	case err != nil:
		return skipped("cannot list the endpoints of the kernel's path manager: %v", err)
	case endpoints > 0 && slices.Contains(programs, "NetworkManager"):
		return warning("nmcli connection modify NAME connection.mptcp-flags disabled, for each connection",
			"endpoints are configured, likely by NetworkManager (%d): they do nothing while the agent runs", endpoints)
	case endpoints > 0:
		return warning("ip mptcp endpoint flush, and remove what sets them at boot",
			"endpoints are configured (%d, see `ip mptcp endpoint`): they do nothing while the agent runs", endpoints)
	}
	return ok("none")
}

func checkJoin(_ context.Context, e *Env) Result {
	allowed, err := e.sysctl("net/mptcp/allow_join_initial_addr_port")
	switch {
	case err != nil:
		return skipped("cannot read net.mptcp.allow_join_initial_addr_port: %v", err)
	case allowed != "1":
		return warning("sysctl -w net.mptcp.allow_join_initial_addr_port=1",
			"peers are told not to join this host's address: they cannot use detours to servers here")
	}
	return ok("allowed")
}

// FixChecksums turns on MPTCP's checksums, now and after each boot.
const FixChecksums = "sysctl -w net.mptcp.checksum_enabled=1, and the same line in a file of /etc/sysctl.d"

// checkChecksums checks MPTCP's checksums. Both ends use them if either asks for them.
func checkChecksums(_ context.Context, e *Env) Result {
	enabled, err := e.sysctl("net/mptcp/checksum_enabled")
	switch {
	case err != nil:
		return skipped("cannot read net.mptcp.checksum_enabled: %v", err)
	case enabled != "1":
		return optional(FixChecksums, "off: changes that a waypoint or a network makes to unencrypted data are not noticed")
	}
	return ok("on: a detour that changes data is no longer used")
}

// checkBlackhole checks the time for which the kernel uses plain TCP after an outage, and whether it does so now.
// Setting the sysctl ends that, even if its value stays the same.
func checkBlackhole(_ context.Context, e *Env) Result {
	const key = "net.mptcp.blackhole_timeout"
	fix := "sysctl -w " + key + "=" + strconv.Itoa(mptcp.BlackholeTimeout)
	timeout, err := e.sysctlInt(strings.ReplaceAll(key, ".", "/"))
	if errors.Is(err, fs.ErrNotExist) {
		return ok("new connections have MPTCP (this kernel does not turn it off after an outage)")
	}
	if err != nil {
		return skipped("cannot read %s: %v", key, err)
	}
	plain, err := e.System.PlainTCP()
	switch {
	case err != nil:
		return skipped("cannot find out whether new connections have MPTCP: %v", err)
	case plain:
		return warning(fix, "new connections are plain TCP: during an outage, the kernel took the network for one that drops MPTCP (%s = %d)", key, timeout)
	case timeout == 0:
		return ok("new connections have MPTCP (%s = 0)", key)
	case timeout <= mptcp.BlackholeTimeout:
		return ok("after an outage, new connections are plain TCP for %d s (%s)", timeout, key)
	case e.AgentRuns && e.Config.Client:
		return optional(fix, "after an outage, new connections are plain TCP for %d s; the agent keeps this value of %s, because it is not Linux's default", timeout, key)
	case e.AgentUnasked != nil:
		return e.untold("after an outage, new connections are plain TCP for %d s (%s); the agent changes Linux's default to %d s while it runs", timeout, key, mptcp.BlackholeTimeout)
	}
	return info("after an outage, new connections are plain TCP for %d s (%s); the agent changes Linux's default to %d s while it runs", timeout, key, mptcp.BlackholeTimeout)
}

func checkCongestion(_ context.Context, e *Env) Result {
	name, err := e.sysctl("net/ipv4/tcp_congestion_control")
	if err != nil {
		return skipped("cannot read net.ipv4.tcp_congestion_control: %v", err)
	}
	if len(e.Config.Congestion) == 0 {
		return info("%s, on each subflow separately", name)
	}
	for _, wanted := range e.Config.Congestion {
		err := e.System.TryCongestion(wanted)
		u, refused := errors.AsType[*cc.UnavailableError](err)
		switch {
		case errors.Is(err, errCannotTry):
			return skipped("%s is not tried: %v", wanted, err)
		case refused:
			return warning(u.Fix, "[[congestion]] use = %q does not apply, so its connections get what other tables choose, or %s: %v", wanted, name, u.Err)
		case err != nil:
			return warning(fixReport, "[[congestion]] use = %q does not apply, so its connections get what other tables choose, or %s: %v", wanted, name, err)
		}
	}
	return ok("%s, and by [[congestion]] also %s", name, strings.Join(e.Config.Congestion, ", "))
}

func checkOptions(_ context.Context, e *Env) Result {
	if !e.Config.Options {
		return skipped("the configuration exchanges none ([options])")
	}
	const fix = "if a firewall drops such SYNs, list in [options] networks only networks that let them pass, because each new trial " +
		"delays a connection by a second; if the SYN was lost by chance, do nothing: the agent tries again (`dcol option list`)"
	switch networks := e.Unannounced.Networks; {
	case e.Unannounced.Internet:
		return warning(fix, "none are exchanged with the Internet for now: SYNs that announce them were lost to several networks in a row, and those without were answered")
	case len(networks) > 0:
		which := networks[0].String()
		if more := len(networks) - 1; more > 0 {
			which += fmt.Sprintf(" and %d more", more)
		}
		return warning(fix, "none are exchanged with %s for now: a SYN that announced them was lost there, and the next one without was answered", which)
	}
	err := e.System.TryOptions()
	u, refused := errors.AsType[*option.UnavailableError](err)
	switch {
	case errors.Is(err, errCannotTry):
		return skipped("%v", err)
	case refused:
		return warning(u.Fix, "none can be exchanged: %v", u.Err)
	case err != nil:
		return warning(fixReport, "none can be exchanged: %v", err)
	}
	return ok("they can be exchanged; servers that listened before the agent began answer no announcement")
}

// checkFallback tries whether this kernel has a known fault (docs/kernel-behaviour.md).
func checkFallback(_ context.Context, e *Env) Result {
	loses, err := e.System.TryFallback()
	switch {
	case err != nil:
		return skipped("cannot try whether they lose data: %v", err)
	case loses:
		return warning("boot a kernel without the fault; until then, on a network that loses more than a few percent of its packets, start programs without `dcol run`",
			"this kernel can lose data of MPTCP sockets whose server speaks plain TCP, if packets are lost (docs/kernel-behaviour.md#fallback)")
	}
	return ok("they lose no data")
}

// socketChecks returns the checks of the ways in which programs can get MPTCP sockets. One way is enough, and only that
// of `dcol run` is required.
func socketChecks() []Check {
	check := func(name, title string, without verdict) Check {
		return Check{"sockets-" + name, title, func(_ context.Context, e *Env) Result {
			for _, m := range e.System.SocketMethods() {
				if m.Name != name {
					continue
				}
				if m.Available {
					return ok("%s: %s", m.For, m.Why)
				}
				return without(m.Fix, "not for %s: %s", m.For, m.Why)
			}
			return skipped("this version of dcol does not know the method %q", name)
		}}
	}
	return []Check{
		check("seccomp", "MPTCP sockets by dcol run", warning),
		check("bpf", "MPTCP sockets by the kernel's hook", optional),
		check("mptcpize", "MPTCP sockets by mptcpize", optional),
		check("program", "MPTCP sockets by programs themselves", optional),
	}
}
