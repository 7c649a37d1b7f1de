package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/bpf/option"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/mptcpify"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

func TestRequirements(t *testing.T) {
	refused := fmt.Errorf("list: %w", os.NewSyscallError("sendmsg", syscall.EPERM))
	inUse := os.NewSyscallError("bind", syscall.EADDRINUSE)
	running := func(e *Env) { e.AgentRuns = true }
	unasked := func(e *Env) { e.AgentUnasked = fmt.Errorf("the socket is root's (%w)", fs.ErrPermission) }
	silent := func(e *Env) { e.AgentUnasked = errors.New("the agent speaks dcol.status/2") }
	set := func(name, content string) func(*Env) { return func(e *Env) { e.set(name, content) } }
	remove := func(name string) func(*Env) { return func(e *Env) { e.remove(name) } }
	endpoints := func(n int, err error) func(*Env) {
		return func(e *Env) { e.System.Endpoints = func() (int, error) { return n, err } }
	}
	marks := func(uses ...netstate.MarkUse) func(*Env) {
		return func(e *Env) { e.System.MarkUses = func() ([]netstate.MarkUse, error) { return uses, nil } }
	}
	plainTCP := func(plain bool, err error) func(*Env) {
		return func(e *Env) { e.System.PlainTCP = func() (bool, error) { return plain, err } }
	}
	congestion := func(err error) func(*Env) {
		return func(e *Env) {
			e.Config.Congestion = []string{"lia", "bbr"}
			e.System.TryCongestion = func(string) error { return err }
		}
	}
	options := func(err error) func(*Env) {
		return func(e *Env) { e.Config.Options, e.System.TryOptions = true, func() error { return err } }
	}
	fallback := func(loses bool, err error) func(*Env) {
		return func(e *Env) { e.System.TryFallback = func() (bool, error) { return loses, err } }
	}
	drops := func(err error, chains ...string) func(*Env) {
		return func(e *Env) { e.System.ForwardDrops = func() ([]string, error) { return chains, err } }
	}
	listen := func(err error) func(*Env) {
		return func(e *Env) { e.System.ListenUDP = func(string) error { return err } }
	}
	const (
		mptcp     = "proc/sys/net/mptcp/"
		conf      = "proc/sys/net/ipv4/conf/"
		netfilter = "proc/sys/net/netfilter/nf_conntrack_"
	)
	only := func(kind string) func(*Env) {
		return func(e *Env) { e.Config.Kinds, e.Config.Offers = []string{kind}, []string{kind} }
	}
	tunnelled := func(e *Env) { e.Config.Client, e.Config.TunnelMark = true, 2 }
	clientOnly := func(e *Env) { e.Config.Waypoint = false }
	inBandFails := func(err error) func(*Env) {
		return func(e *Env) {
			e.System.TryInBandSender = func(string) error { return err }
			e.System.TryInBandReceiver = func() error { return err }
		}
	}
	wireGuard := func(kind string, err error) func(*Env) {
		return func(e *Env) { e.System.TryWireGuard = func() (string, error) { return kind, err } }
	}
	openVPN := func(err error) func(*Env) {
		return func(e *Env) { e.System.FindOpenVPN = func() (string, string, error) { return "", "", err } }
	}
	routing := func(err error) func(*Env) {
		return func(e *Env) { e.System.TryTunnelRouting = func() error { return err } }
	}
	joined := func(c *Collective) func(*Env) {
		return func(e *Env) { e.Config.Joined, e.Collective = true, c }
	}
	notTried := fmt.Errorf("%w: needs root: %w", errCannotTry, syscall.EPERM)
	noBPF := &inband.UnavailableError{Fix: "give the agent CAP_BPF", Err: syscall.EPERM}
	noWireGuard := &wireguard.UnavailableError{Fix: "modprobe wireguard", Err: syscall.ENODEV}
	router := func(own, protocol string, err error) func(*Env) {
		return func(e *Env) {
			e.System.AskRouter = func(context.Context) (netip.Addr, string, error) { return netip.MustParseAddr(own), protocol, err }
		}
	}
	choice := func(c Choice) func(*Env) { return func(e *Env) { e.Choice = &c } }
	outside := func(o Outside) func(*Env) { return func(e *Env) { e.Outside = &o } }
	converting := func(c Converting) func(*Env) { return func(e *Env) { e.Converting = &c } }
	oldListeners := func(err error) func(*Env) {
		return func(e *Env) { e.System.TryFastOpen = func() error { return err } }
	}
	serves := func(c Converter) func(*Env) { return func(e *Env) { e.Converter = &c } }
	const fastOpen = "proc/sys/net/ipv4/tcp_fastopen"
	sends := func(e *Env) { e.Config.Client, e.Config.SendsFastOpen = true, true }
	takes := func(e *Env) { e.Config.TakesFastOpen = true }
	at, own := netip.MustParseAddrPort("203.0.113.9:45672"), netip.MustParseAddr("192.168.1.2")
	for _, c := range []struct {
		code   string
		name   string
		change []func(*Env)
		state  State
		detail string // what the text must contain
		fix    string
	}{
		{"kernel", "first with a path manager", []func(*Env){set("proc/sys/kernel/osrelease", "5.19.0")}, OK, "5.19.0", ""},
		{"kernel", "just too old", []func(*Env){set("proc/sys/kernel/osrelease", "5.18.19")}, Failed, "5.18.19", "5.19"},
		{"kernel", "much too old", []func(*Env){set("proc/sys/kernel/osrelease", "4.19.0-8-amd64")}, Failed, "4.19", "5.19"},
		{"kernel", "odd", []func(*Env){set("proc/sys/kernel/osrelease", "plan9")}, Skipped, "plan9", ""},

		{"kernel-limits", "of Debian 12", []func(*Env){set("proc/sys/kernel/osrelease", "6.1.0-50-amd64")}, Info, "byte counters of connections (since Linux 6.5)", ""},
		{"kernel-limits", "odd", []func(*Env){set("proc/sys/kernel/osrelease", "plan9")}, Skipped, "plan9", ""},

		{"mptcp", "off", []func(*Env){set(mptcp+"enabled", "0\n")}, Failed, "is 0", "sysctl -w net.mptcp.enabled=1"},
		{"mptcp", "not built", []func(*Env){remove(mptcp + "enabled")}, Failed, "without MPTCP", "CONFIG_MPTCP"},

		{"userspace-pm", "by name", []func(*Env){set(mptcp+"available_path_managers", "kernel userspace")}, OK, "kernel userspace", ""},
		{"userspace-pm", "another name only", []func(*Env){set(mptcp+"available_path_managers", "kernel")}, Failed, "none", "5.19"},
		{"userspace-pm", "none", []func(*Env){remove(mptcp + "pm_type")}, Failed, "none", "5.19"},

		{"path-manager", "agent at work", []func(*Env){running, set(mptcp+"pm_type", "1")}, OK, "agent runs", ""},
		{"path-manager", "agent displaced", []func(*Env){running}, Failed, `"kernel"`, "restart the agent"},
		{"path-manager", "who may not ask the agent", []func(*Env){unasked, set(mptcp+"pm_type", "1")}, Skipped, "userspace; it should be userspace while the agent runs, and kernel otherwise; only root can tell: sudo dcol doctor", ""},
		{"path-manager", "who may not ask the agent, displaced", []func(*Env){unasked}, Skipped, "kernel; it should be", ""},
		{"path-manager", "left behind", []func(*Env){set(mptcp+"pm_type", "1")}, Warning, "refuses joins", "start the agent"},
		{"path-manager", "name goes before number", []func(*Env){running, set(mptcp+"path_manager", "userspace")}, OK, "userspace", ""},
		{"path-manager", "third party", []func(*Env){set(mptcp+"path_manager", "bpf_mine")}, Warning, "bpf_mine", "sysctl"},
		{"path-manager", "unknown number", []func(*Env){set(mptcp+"pm_type", "7")}, Warning, "type 7", "sysctl"},
		{"path-manager", "agent is a waypoint only", []func(*Env){running, func(e *Env) { e.Config.Client = false }}, OK, "kernel", ""},

		{"competitors", "mptcpd", []func(*Env){set("proc/77/comm", "mptcpd\n")}, Warning, "mptcpd", "systemctl disable"},
		{"competitors", "NetworkManager without endpoints", []func(*Env){set("proc/77/comm", "NetworkManager\n")}, OK, "none", ""},
		{"competitors", "NetworkManager with endpoints", []func(*Env){set("proc/77/comm", "NetworkManager\n"), endpoints(2, nil)}, Warning, "NetworkManager (2)", "nmcli"},
		{"competitors", "endpoints", []func(*Env){endpoints(1, nil)}, Warning, "configured (1", "ip mptcp endpoint flush"},
		{"competitors", "not root", []func(*Env){endpoints(0, refused)}, Skipped, "root", ""},
		{"competitors", "no netlink family", []func(*Env){endpoints(0, syscall.ENOENT)}, Skipped, "no such file", ""},

		{"converters", "none wanted", []func(*Env){running, converting(Converting{Admitted: 1})}, Skipped, "never", ""},
		{"converters", "no client", []func(*Env){running}, Skipped, "client role", ""},
		{"converters", "none offered", []func(*Env){running, converting(Converting{Wanted: true})}, Warning, "no waypoint in use offers one", "dcol convert never"},
		{"converters", "none ready", []func(*Env){running, converting(Converting{Wanted: true, Offered: []string{"bob"}})}, Warning, "the converter of bob is not ready", "dcol status"},
		{"converters", "two", []func(*Env){running, converting(Converting{Wanted: true, Admitted: 2})}, OK, "admitted to 2", ""},
		{"converters", "excluded", []func(*Env){running, converting(Converting{Wanted: true, Admitted: 2, Excluded: []string{"bob at 10.0.0.7"}})}, Warning, "get no detours, because client.exclude has their addresses: bob at 10.0.0.7", "out of client.exclude"},
		{"converters", "refused", []func(*Env){running, converting(Converting{Wanted: true, Refused: []string{"bob: full", "carol: closed"}})}, Warning, "offered, but this host cannot use it (bob: full; carol: closed)", "ask the operator"},
		{"converters", "one of two", []func(*Env){running, converting(Converting{Wanted: true, Admitted: 1, Refused: []string{"bob: full"}})}, OK, "admitted to 1, and not to others (bob: full)", ""},
		{"converters", "unasked", []func(*Env){unasked}, Skipped, "could not be asked", ""},
		{"converter", "not offered", []func(*Env){running}, Skipped, "does not offer a converter", ""},
		{"converter", "no agent", []func(*Env){only(kindConverter)}, Skipped, "no agent runs", ""},
		{"converter", "unasked", []func(*Env){only(kindConverter), silent}, Skipped, "could not be asked", ""},
		{"converter", "not served", []func(*Env){running, only(kindConverter)}, Warning, "does not serve it", "restart"},
		{"converter", "port taken", []func(*Env){running, only(kindConverter), serves(Converter{":5124", "address already in use"})}, Warning, ":5124: address already in use", "waypoint.converter_port"},
		{"converter", "listens", []func(*Env){running, only(kindConverter), serves(Converter{Listen: ":5124"})}, OK, "listens at :5124", ""},
		{"fast-open", "not configured", []func(*Env){only(kindConverter)}, Skipped, "fast_open", ""},
		{"fast-open", "sends, as Linux has it", []func(*Env){sends, set(fastOpen, "1")}, OK, "is 1", ""},
		{"fast-open", "sends, off", []func(*Env){sends, set(fastOpen, "0")}, Warning, "no SYN", "tcp_fastopen=1"},
		{"fast-open", "sends without cookies", []func(*Env){sends, set(fastOpen, "1029")}, Warning, "plain TCP", "tcp_fastopen=1025"},
		{"fast-open", "takes, as Linux has it", []func(*Env){only(kindConverter), takes, set(fastOpen, "1")}, Warning, "takes no data", "tcp_fastopen=3"},
		{"fast-open", "takes", []func(*Env){only(kindConverter), takes, set(fastOpen, "7")}, OK, "is 7", ""},
		{"fast-open", "takes, before Linux 6.2", []func(*Env){only(kindConverter), takes, set(fastOpen, "3"), oldListeners(syscall.EOPNOTSUPP)}, Warning, "MPTCP listeners of this kernel do not support it", "Linux 6.2"},
		{"fast-open", "both, before Linux 6.2", []func(*Env){only(kindConverter), sends, takes, set(fastOpen, "0"), oldListeners(syscall.EOPNOTSUPP)}, Warning, "no SYN to a converter has data", "Linux 6.2 or later, or remove waypoint.converter_fast_open; and sysctl -w net.ipv4.tcp_fastopen=1,"},
		{"fast-open", "takes, without MPTCP", []func(*Env){only(kindConverter), takes, set(fastOpen, "3"), oldListeners(notTried)}, OK, "is 3", ""},
		{"fast-open", "unknown", []func(*Env){sends}, Skipped, "cannot read", ""},
		{"converter-pause", "no converter", nil, Skipped, "does not offer a converter", ""},
		{"converter-pause", "unknown", []func(*Env){only(kindConverter)}, Skipped, "cannot read", ""},
		{"converter-pause", "as Linux has it", []func(*Env){only(kindConverter), set("proc/sys/net/ipv4/tcp_slow_start_after_idle", "1")}, Info, "small congestion window", "tcp_slow_start_after_idle=0"},
		{"converter-pause", "off", []func(*Env){only(kindConverter), set("proc/sys/net/ipv4/tcp_slow_start_after_idle", "0")}, OK, "from before the pause", ""},

		{"join", "refused", []func(*Env){set(mptcp+"allow_join_initial_addr_port", "0")}, Warning, "not to join", "=1"},
		{"checksums", "on", []func(*Env){set(mptcp+"checksum_enabled", "1")}, OK, "no longer used", ""},
		{"checksums", "off", []func(*Env){set(mptcp+"checksum_enabled", "0")}, Info, "not noticed", "checksum_enabled=1"},
		{"checksums", "unknown", []func(*Env){remove(mptcp + "checksum_enabled")}, Skipped, "cannot read", ""},
		{"blackhole", "none on this kernel", []func(*Env){remove(mptcp + "blackhole_timeout")}, OK, "does not turn it off", ""},
		{"blackhole", "switched off", []func(*Env){set(mptcp+"blackhole_timeout", "0")}, OK, "= 0", ""},
		{"blackhole", "Linux's default", []func(*Env){set(mptcp+"blackhole_timeout", "3600")}, Info, "3600 s (net.mptcp.blackhole_timeout); the agent changes", ""},
		{"blackhole", "Linux's default, perhaps under an agent", []func(*Env){unasked, set(mptcp+"blackhole_timeout", "3600")}, Skipped, "sudo dcol doctor", ""},
		{"blackhole", "somebody's value", []func(*Env){running, set(mptcp+"blackhole_timeout", "7200")}, Info, "7200 s; the agent keeps", "blackhole_timeout=60"},
		{"blackhole", "the agent's value", []func(*Env){running}, OK, "for 60 s", ""},
		{"blackhole", "plain at present", []func(*Env){running, plainTCP(true, nil)}, Warning, "new connections are plain TCP", "sysctl -w net.mptcp.blackhole_timeout=60"},
		{"blackhole", "not known", []func(*Env){plainTCP(false, syscall.ENOPROTOOPT)}, Skipped, "protocol not available", ""},
		{"congestion", "by tables", []func(*Env){congestion(nil)}, OK, "and by [[congestion]] also lia, bbr", ""},
		{"congestion", "refused", []func(*Env){congestion(&cc.UnavailableError{Fix: "do so", Err: errors.New("no right")})}, Warning, `[[congestion]] use = "lia" does not apply, so its connections get what other tables choose, or cubic: no right`, "do so"},
		{"congestion", "unexpected", []func(*Env){congestion(errors.New("odd"))}, Warning, "odd", "please report"},
		{"congestion", "not tried", []func(*Env){congestion(errCannotTry)}, Skipped, "lia is not tried", ""},
		{"fallback", "sound", nil, OK, "lose no data", ""},
		{"fallback", "faulty", []func(*Env){fallback(true, nil)}, Warning, "can lose data", "start programs without"},
		{"fallback", "not tried", []func(*Env){fallback(false, errCannotTry)}, Skipped, "not tried", ""},
		{"tcp-options", "none", nil, Skipped, "exchanges none", ""},
		{"tcp-options", "possible", []func(*Env){options(nil)}, OK, "they can be exchanged", ""},
		{"tcp-options", "refused", []func(*Env){options(&option.UnavailableError{Fix: "do so", Err: errors.New("no right")})}, Warning, "none can be exchanged: no right", "do so"},
		{"tcp-options", "unexpected", []func(*Env){options(errors.New("odd"))}, Warning, "odd", "please report"},
		{"tcp-options", "lost in a network", []func(*Env){options(nil), func(e *Env) {
			e.Unannounced.Networks = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("198.51.100.0/24")}
		}}, Warning, "with 203.0.113.0/24 and 1 more for now", "[options] networks"},
		{"tcp-options", "lost near this host", []func(*Env){options(nil), func(e *Env) {
			e.Unannounced = Unannounced{Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Internet: true}
		}}, Warning, "with the Internet for now", "[options] networks"},
		{"tcp-options", "not tried", []func(*Env){options(errCannotTry)}, Skipped, "not tried", ""},
		{"congestion", "another", []func(*Env){set("proc/sys/net/ipv4/tcp_congestion_control", "bbr")}, Info, "bbr", ""},

		{"sockets-seccomp", "refused", []func(*Env){func(e *Env) {
			e.System.SocketMethods = func() []mptcpify.Method {
				return []mptcpify.Method{{Name: "seccomp", For: "any", Why: "refused", Fix: "allow it"}}
			}
		}}, Warning, "refused", "allow it"},
		{"sockets-bpf", "refused", nil, Info, "not permitted", "be root"},

		{"rights", "none", []func(*Env){set("proc/self/status", "CapEff:\t0000000000000000\n")}, Failed, "CAP_NET_ADMIN", "as root"},
		{"rights", "none, but the agent is another user's", []func(*Env){unasked, set("proc/self/status", "CapEff:\t0000000000000000\n")}, Skipped, "sudo dcol doctor", ""},
		{"rights", "of the service", []func(*Env){set("proc/self/status", "CapEff:\t0000000000003000\n")}, Info, "CAP_SYS_ADMIN, CAP_BPF, CAP_PERFMON", ""},
		{"rights", "unreadable", []func(*Env){set("proc/self/status", "CapEff:\tmany\n")}, Skipped, "many", ""},
		{"ebpf", "no type information", []func(*Env){remove("sys/kernel/btf/vmlinux")}, Info, "CONFIG_DEBUG_INFO_BTF", ""},
		{"cgroup", "hybrid", []func(*Env){set("proc/self/mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n")}, OK, "/sys/fs/cgroup/unified", ""},
		{"cgroup", "version 1 only", []func(*Env){set("proc/self/mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\n")}, Info, "programs that make requests keep silent detours", "mount -t cgroup2"},
		{"tun", "none", []func(*Env){remove("dev/net/tun")}, Info, "OpenVPN needs it", "modprobe tun"},

		{"outside", "public", []func(*Env){router("203.0.113.7", "", nil)}, Info, "203.0.113.7 is public", ""},
		{"outside", "no router", []func(*Env){router("192.168.1.2", "", nil)}, Info, "there is no router", ""},
		{"outside", "an unwilling router", []func(*Env){router("192.168.1.2", "", fmt.Errorf("%w (PCP: no answer)", portmap.ErrNoProtocol))}, Warning, "neither PCP nor", "forward UDP port 45672 to 192.168.1.2"},
		{"outside", "not to be asked", []func(*Env){func(e *Env) { e.Config.PortMapping = false }}, Warning, "forbids asking it", "port_mapping = true"},
		{"outside", "no network", []func(*Env){router("192.168.1.2", "", syscall.ENETUNREACH)}, Skipped, "unreachable", ""},
		{"outside", "opened", []func(*Env){outside(Outside{Address: at, Leaves: nat.Reachable, NAT: "symmetric NAT", Opened: true, Router: "UPnP"})}, OK, "203.0.113.9:45672: the router has opened the port (UPnP)", ""},
		{"outside", "open by itself", []func(*Env){outside(Outside{Address: at, Leaves: nat.Reachable, NAT: "full cone NAT"})}, OK, "full cone", ""},
		{"outside", "restricted", []func(*Env){outside(Outside{Address: at, Leaves: nat.Punchable, NAT: "port-restricted cone NAT", Own: own})}, Warning, "port-restricted", "45672 to 192.168.1.2"},
		{"outside", "restricted, in a collective", []func(*Env){outside(Outside{Address: at, Leaves: nat.Punchable, NAT: "port-restricted cone NAT", Own: own, Punches: true})}, Info, "hole punching", "45672 to 192.168.1.2"},
		{"outside", "symmetric", []func(*Env){outside(Outside{Leaves: nat.Unreachable, NAT: "symmetric NAT", Problem: "the router has no room", Fix: "buy another"})}, Warning, "symmetric NAT; the router has no room", "buy another"},
		{"outside", "blocked", []func(*Env){outside(Outside{Leaves: nat.ClientOnly, Asked: 2})}, Failed, "none of 2 members", "allow outgoing UDP"},
		{"outside", "nobody is there", []func(*Env){outside(Outside{Leaves: nat.ClientOnly, Asked: 2}), func(e *Env) { e.Collective = &Collective{} }}, Warning, "or they are all down", "check whether they run"},
		{"outside", "private, nobody to ask", []func(*Env){outside(Outside{Leaves: nat.LeavesOpen, NAT: "unknown", Own: own})}, Warning, "is private", "45672 to 192.168.1.2"},
		{"outside", "public, nobody to ask", []func(*Env){outside(Outside{Leaves: nat.LeavesOpen, NAT: "unknown", Own: at.Addr()})}, Info, "0 of 0 members", ""},
		{"outside", "public, nobody to ask, in words", []func(*Env){outside(Outside{Leaves: nat.LeavesOpen, Why: "there is no other waypoint", Own: at.Addr()})},
			Info, "members can reach it: there is no other waypoint", ""},
		{"outside", "who may not ask the agent", []func(*Env){unasked, router("192.168.1.2", "", portmap.ErrNoProtocol)}, Skipped, "sudo dcol doctor", ""},
		{"outside", "client", []func(*Env){clientOnly}, Skipped, "only waypoints", ""},

		{"rp-filter", "strict by all", []func(*Env){set(conf+"all/rp_filter", "1"), set(conf+"eth1/rp_filter", "0")}, Warning, "eth1", "net.ipv4.conf.all.rp_filter=2"},
		{"rp-filter", "loose wins over strict", []func(*Env){set(conf+"all/rp_filter", "2"), set(conf+"eth1/rp_filter", "1")}, OK, "not strict", ""},
		{"rp-filter", "strict by itself", []func(*Env){set(conf+"eth0.100/rp_filter", "1")}, Warning, "eth0.100", "net.ipv4.conf.eth0/100.rp_filter=2"},
		{"rp-filter", "strict for lo and the future only", []func(*Env){set(conf+"all/rp_filter", "1")}, OK, "not strict", ""},
		{"rp-filter", "strict for tunnels", []func(*Env){set(conf+"dcolwg0/rp_filter", "1")}, OK, "not strict", ""},

		{"nftables", "not built", []func(*Env){drops(syscall.EOPNOTSUPP)}, Failed, "not supported", "CONFIG_NF_TABLES"},
		{"nftables", "not root", []func(*Env){drops(refused)}, Skipped, "root", ""},
		{"conntrack", "not loaded", []func(*Env){remove(netfilter + "max")}, Info, "not loaded", ""},
		{"conntrack", "nearly full", []func(*Env){set(netfilter+"count", "801")}, Warning, "801 of at most 1000", "nf_conntrack_max=2000"},
		{"conntrack", "not counted", []func(*Env){running}, Warning, "attribution", "nf_conntrack_acct=1"},
		{"conntrack", "counted", []func(*Env){running, set(netfilter+"acct", "1")}, OK, "10 of", ""},
		{"forwarding", "off before the agent", []func(*Env){set("proc/sys/net/ipv4/ip_forward", "0")}, Info, "net.ipv4.ip_forward", ""},
		{"forwarding", "off under the agent", []func(*Env){running, set("proc/sys/net/ipv6/conf/all/forwarding", "0")}, Failed, "net.ipv6", "restart the agent"},
		{"forwarding", "off, perhaps under an agent", []func(*Env){unasked, set("proc/sys/net/ipv4/ip_forward", "0")}, Skipped, "sudo dcol doctor", ""},
		{"forwarding", "no IPv6", []func(*Env){running, remove("proc/sys/net/ipv6/conf/all/forwarding")}, OK, "on", ""},
		{"firewall", "drops", []func(*Env){drops(nil, "ip filter FORWARD", "ip6 filter FORWARD")}, Warning, "ip filter FORWARD, ip6", "nft insert rule ip6 filter FORWARD ct status dnat accept"},
		{"firewall", "drops what comes out of tunnels", []func(*Env){drops(nil, "inet filter forward")}, Warning, "inet filter forward", `nft insert rule inet filter forward iifname '"dcol*"' accept`},
		{"firewall", "drops, but there are no tunnels", []func(*Env){drops(nil, "inet filter forward"), only("mapped")}, Warning, "inet filter forward", "ct status dnat accept (and"},
		{"firewall", "old iptables", []func(*Env){set("proc/net/ip_tables_names", "nat\nfilter\n")}, Info, "iptables-legacy", ""},
		{"firewall", "old iptables without filter", []func(*Env){set("proc/net/ip_tables_names", "nat\n")}, OK, "no chain", ""},
		{"firewall", "not a waypoint", []func(*Env){drops(nil, "ip filter FORWARD"), func(e *Env) { e.Config.Waypoint = false }}, Skipped, "waypoints", ""},

		{"marks", "in other bits", []func(*Env){marks(netstate.MarkUse{Rule: "ip rule 5210 (fwmark 0x80000/0xff0000)", Mask: 0xff0000, Value: 0x80000}, netstate.MarkUse{Rule: "rule a", Mask: 0x4000, Value: 0x4000, Sets: true})}, OK, "0xff0000ff", ""},
		{"marks", "compared in the same bits", []func(*Env){marks(netstate.MarkUse{Rule: "ip rule 9 (fwmark 0x1/0xff)", Mask: 0xff, Value: 1})}, Warning, "ip rule 9 (fwmark 0x1/0xff) uses bits of waypoint.marks = 0xff0000ff", "run `dcol down`, set waypoint.marks = 0xffff0000 and start the agent"},
		{"marks", "set in the same bits", []func(*Env){marks(netstate.MarkUse{Rule: "rule ip t c handle 3", Mask: 0x3ffff, Sets: true})}, Warning, "rule ip t c handle 3 uses", "waypoint.marks = 0xfffc0000 and"},
		{"marks", "overwritten", []func(*Env){marks(netstate.MarkUse{Rule: "rule ip t c handle 3", Mask: 0xffffffff, Value: 1, Sets: true})}, Warning, "handle 3 overwrites whole marks", "--set-xmark"},
		{"marks", "as a whole that looks like ours", []func(*Env){marks(netstate.MarkUse{Rule: "ip rule 9 (fwmark 0x80000000/0xffffffff)", Mask: 0xffffffff, Value: 0x80000000})}, Warning, "ip rule 9", "waypoint.marks = 0x7fff8000 and"},
		{"marks", "as a whole, by wg-quick", []func(*Env){marks(netstate.MarkUse{Rule: "ip rule 32764 (fwmark 0xca6c/0xffffffff)", Mask: 0xffffffff, Value: 0xca6c})}, Info, "fwmark 0xca6c", "waypoint.marks = 0xffff0000 and"},
		{"marks", "in nearly all bits", []func(*Env){marks(netstate.MarkUse{Rule: "rule a", Mask: 0xfffffff0, Sets: true})}, Warning, "rule a", "not enough free ones"},
		{"marks", "by many rules", []func(*Env){marks(slices.Repeat([]netstate.MarkUse{{Rule: "rule a", Mask: 1}}, 6)...)}, Warning, "rule a, rule a, rule a, rule a and 2 more", ""},
		{"marks", "not root", []func(*Env){func(e *Env) { e.System.MarkUses = func() ([]netstate.MarkUse, error) { return nil, refused } }}, Skipped, "root", ""},
		{"marks", "old iptables", []func(*Env){set("proc/net/ip_tables_names", "mangle\nfilter\n")}, Info, "iptables-legacy -t mangle", ""},
		{"marks", "of connections to converters", []func(*Env){clientOnly, tunnelled, marks(netstate.MarkUse{Rule: "ip rule 9 (fwmark 0x2/0xffffffff)", Mask: 0xffffffff, Value: 2})}, Warning, "ip rule 9 (fwmark 0x2/0xffffffff) uses the mark 0x2 of connections to converters", "set waypoint.marks = "},
		{"marks", "of connections to converters, with bits of another program", []func(*Env){tunnelled, marks(netstate.MarkUse{Rule: "rule a", Mask: 0xffff, Value: 0x102, Sets: true})}, Warning, "rule a", ""},
		{"marks", "of none to converters", []func(*Env){clientOnly, tunnelled, marks(netstate.MarkUse{Rule: "rule a", Mask: 0xffffffff, Value: 3})}, OK, "0x2", ""},
		{"marks", "of a client", []func(*Env){clientOnly, marks(netstate.MarkUse{Rule: "rule a", Mask: 1})}, Skipped, "only waypoints", ""},

		{"port", "taken", []func(*Env){listen(inUse)}, Failed, "another program", "ss -ulpn"},
		{"port", "ours", []func(*Env){listen(inUse), running}, OK, "in use by the agent", ""},
		{"port", "ours, perhaps", []func(*Env){listen(inUse), unasked}, Skipped, "sudo dcol doctor", ""},
		{"port", "agent deaf, perhaps", []func(*Env){unasked}, Skipped, "free, which is a problem only while the agent runs", ""},
		{"port", "ours, of an agent that does not answer", []func(*Env){listen(inUse), silent}, Skipped, "could not be asked", ""},
		{"port", "below 1024, without root", []func(*Env){listen(os.NewSyscallError("bind", syscall.EACCES))}, Skipped, "needs root", ""},
		{"port", "whoever may not read the configuration", []func(*Env){func(e *Env) { e.Config = Config{Err: fs.ErrPermission} }}, Skipped, "needs root", ""},
		{"port", "agent deaf", []func(*Env){running}, Failed, "does not listen", "restart"},
		{"port", "a client does not listen", []func(*Env){listen(inUse), func(e *Env) { e.Config.Waypoint = false }}, Skipped, "only waypoints", ""},
		{"port", "not our address", []func(*Env){listen(syscall.EADDRNOTAVAIL)}, Failed, "cannot be used", "session.listen"},
		{"port", "no configuration", []func(*Env){func(e *Env) { e.Config.Err = fs.ErrNotExist }}, Skipped, "configuration", ""},

		{"in-band-client", "works", nil, OK, "for all programs", ""},
		{"in-band-client", "works in a cgroup", []func(*Env){func(e *Env) { e.Config.Cgroup = "/sys/fs/cgroup/some" }}, OK, "the programs of /sys/fs/cgroup/some", ""},
		{"in-band-client", "refused", []func(*Env){inBandFails(noBPF)}, Warning, "not permitted", "CAP_BPF"},
		{"in-band-client", "refused, and nothing else is used", []func(*Env){inBandFails(noBPF), only(kindInBand)}, Failed, "not permitted", "CAP_BPF"},
		{"in-band-client", "fails oddly", []func(*Env){inBandFails(syscall.EBADF)}, Warning, "bad file", "report"},
		{"in-band-client", "not root", []func(*Env){inBandFails(notTried)}, Skipped, "root", ""},
		{"in-band-client", "not used", []func(*Env){inBandFails(noBPF), only("mapped")}, Skipped, "does not use", ""},
		{"in-band-client", "no client", []func(*Env){func(e *Env) { e.Config.Client = false }}, Skipped, "does not use", ""},
		{"in-band-client", "no configuration", []func(*Env){func(e *Env) { e.Config.Err = fs.ErrNotExist }}, Skipped, "no usable configuration", ""},
		{"tcp-timestamps", "off", []func(*Env){set("proc/sys/net/ipv4/tcp_timestamps", "0")}, Warning, "authenticate", "tcp_timestamps=1"},
		{"tcp-timestamps", "without random offsets", []func(*Env){set("proc/sys/net/ipv4/tcp_timestamps", "2")}, OK, "on", ""},
		{"tcp-timestamps", "unreadable", []func(*Env){remove("proc/sys/net/ipv4/tcp_timestamps")}, Skipped, "cannot read", ""},
		{"in-band-waypoint", "works", nil, OK, "authenticates", ""},
		{"in-band-waypoint", "refused", []func(*Env){inBandFails(noBPF)}, Warning, "not permitted", "CAP_BPF, or set waypoint.in_band_authenticator = false"},
		{"in-band-waypoint", "refused, and nothing else is offered", []func(*Env){inBandFails(noBPF), only(kindInBand)}, Failed, "not permitted", "CAP_BPF"},
		{"in-band-waypoint", "without authenticator", []func(*Env){inBandFails(noBPF), func(e *Env) { e.Config.Authenticator = false }}, OK, "source address alone", ""},
		{"in-band-waypoint", "no waypoint", []func(*Env){clientOnly}, Skipped, "does not offer", ""},

		{"wireguard", "in user space", []func(*Env){wireGuard("userspace", nil)}, OK, "embedded", ""},
		{"wireguard", "none, of a waypoint", []func(*Env){wireGuard("", noWireGuard)}, Warning, "no such device", "modprobe wireguard"},
		{"wireguard", "none, of a client", []func(*Env){wireGuard("", noWireGuard), clientOnly}, Info, "no such device", "modprobe wireguard"},
		{"wireguard", "none, and nothing else", []func(*Env){wireGuard("", noWireGuard), clientOnly, only(kindWireGuard)}, Failed, "no such device", "modprobe wireguard"},
		{"wireguard", "fails oddly", []func(*Env){wireGuard("", syscall.EBADF)}, Warning, "bad file", "report"},
		{"wireguard", "not root", []func(*Env){wireGuard("", notTried)}, Skipped, "root", ""},
		{"wireguard", "not wanted", []func(*Env){wireGuard("", noWireGuard), only("mapped")}, Skipped, "WireGuard", ""},

		{"openvpn", "missing, of a waypoint", []func(*Env){openVPN(&openvpn.MissingError{})}, Warning, "not installed", "apt-get install openvpn"},
		{"openvpn", "missing, of a client", []func(*Env){openVPN(&openvpn.MissingError{}), clientOnly}, Info, "not installed", "apt-get install openvpn"},
		{"openvpn", "old", []func(*Env){openVPN(&openvpn.OldError{Path: "/usr/sbin/openvpn", Version: "2.5.1"})}, Warning, "2.5.1", "upgrade"},
		{"openvpn", "does not run", []func(*Env){openVPN(syscall.ENOEXEC)}, Warning, "exec format", "reinstall"},
		{"openvpn", "no TUN", []func(*Env){remove("dev/net/tun")}, Warning, "/dev/net/tun", "modprobe tun"},
		{"openvpn-port", "taken, and nothing else is offered", []func(*Env){listen(inUse), only(kindOpenVPN)}, Failed, "UDP :1194", "waypoint.openvpn_port"},

		{"tunnel-routing", "cannot", []func(*Env){routing(syscall.EOPNOTSUPP)}, Warning, "by source", "CONFIG_IP_MULTIPLE_TABLES"},
		{"tunnel-routing", "cannot, and there is nothing else", []func(*Env){routing(syscall.EOPNOTSUPP), only(kindOpenVPN)}, Failed, "by source", "CONFIG_IP_MULTIPLE_TABLES"},
		{"tunnel-routing", "fails oddly", []func(*Env){routing(syscall.EBADF)}, Warning, "bad file", "report"},
		{"tunnel-routing", "no IPv6", []func(*Env){routing(fmt.Errorf("set up: %w", netstate.ErrNoIPv6))}, Info, "IPv4 only", ""},
		{"tunnel-routing", "no tunnel to try it with", []func(*Env){routing(notTried)}, Skipped, "root", ""},
		{"tunnel-routing", "not used", []func(*Env){routing(syscall.EBADF), only(kindInBand)}, Skipped, "neither", ""},

		{"config", "none", []func(*Env){func(e *Env) { e.Config.Err = fs.ErrNotExist }}, Skipped, "not a member", ""},
		{"config", "not readable", []func(*Env){func(e *Env) { e.Config.Err = fs.ErrPermission }}, Skipped, "root", ""},
		{"config", "bad", []func(*Env){func(e *Env) { e.Config.Err = errors.New("line 3: unknown key") }}, Failed, "line 3", "correct /etc/dcol"},
		{"collective", "no agent", []func(*Env){joined(nil)}, Skipped, "does not run", ""},
		{"collective", "who may not ask the agent", []func(*Env){joined(nil), unasked}, Skipped, "sudo dcol doctor", ""},
		{"collective", "connected", []func(*Env){joined(&Collective{Connected: true, Members: 7})}, OK, "7 members", ""},
		{"collective", "away", []func(*Env){joined(&Collective{Why: "connection refused"})}, Warning, "connection refused", "45673"},
		{"collective", "not renewed", []func(*Env){joined(&Collective{Connected: true, Renewal: "wrong clock"})}, Failed, "wrong clock", "certificate expires"},
		{"collective", "expelled", []func(*Env){joined(&Collective{Expelled: "sent spam", Renewal: "expelled"})}, Failed, "sent spam", "ask"},
		{"collective", "unreached", []func(*Env){joined(&Collective{Connected: true, Unreached: true})}, Failed, "cannot reach", "incoming UDP"},
		{"identity", "bad", []func(*Env){func(e *Env) { e.Identity.Err = errors.New("another CA") }}, Failed, "another CA", "dcol ca issue"},
		{"identity", "damaged", []func(*Env){joined(nil), func(e *Env) { e.Identity.Err = errors.New("member.crt: no PEM") }}, Failed, "member.crt", "fix what the message names"},
		{"identity", "not yet", []func(*Env){func(e *Env) { e.Now = e.Identity.NotBefore.Add(-time.Second) }}, Failed, "valid only from 2026-01-01", "clock"},
		{"identity", "ends soon", []func(*Env){func(e *Env) { e.Now = e.Identity.NotAfter.Add(-renewBefore + time.Second) }}, Warning, "expires on 2027-01-01", "dcol ca issue"},
		{"identity", "ends, but not soon", []func(*Env){func(e *Env) { e.Now = e.Identity.NotAfter.Add(-renewBefore) }}, OK, "2027-01-01", ""},
		{"identity", "renewed by itself", []func(*Env){joined(nil)}, OK, "renewed by itself", ""},
		{"identity", "not renewed", []func(*Env){joined(nil), func(e *Env) { e.Now = e.Identity.NotAfter.Add(-time.Hour) }}, Warning, "expires on 2027-01-01", "systemctl start dcol"},
		{"identity", "ended", []func(*Env){func(e *Env) { e.Now = e.Identity.NotAfter.Add(time.Second) }}, Failed, "expired", "dcol ca issue"},
		{"clock", "before this program", []func(*Env){func(e *Env) { e.Now = e.Built.Add(-time.Hour) }}, Failed, "before this dcol was built", "timedatectl"},
		{"clock", "free running", []func(*Env){func(e *Env) { e.System.ClockSynchronised = func() (bool, error) { return false, nil } }}, Warning, "no time service", "timedatectl"},
		{"clock", "unknown", []func(*Env){func(e *Env) { e.System.ClockSynchronised = func() (bool, error) { return false, syscall.EPERM } }}, Skipped, "cannot ask", ""},
		{"agent", "runs", []func(*Env){running}, OK, "runs", ""},
		{"agent", "who may not ask it", []func(*Env){unasked}, Skipped, "whether it runs; only root can tell: sudo dcol doctor", ""},
		{"agent", "does not answer", []func(*Env){silent}, Warning, "could not be asked: the agent speaks dcol.status/2", "systemctl restart dcol"},
		{"agent", "does not run", nil, Info, "does not run (systemctl start dcol)", ""},
		{"agent", "does not run, without systemd", []func(*Env){remove("run/systemd/system/.made")}, Info, "does not run (dcol agent)", ""},
		{"agent", "does not answer, without systemd", []func(*Env){silent, remove("run/systemd/system/.made")}, Warning, "could not be asked", "kill its process, then: dcol agent"},
		{"agent", "has problems", []func(*Env){running, func(e *Env) { e.AgentProblems = []string{"one", "another"} }}, Warning, "one; another", "restart dcol"},

		{"bandwidth", "not limited", nil, Info, "does not notice", "set waypoint.bandwidth"},
		{"bandwidth", "limited", []func(*Env){func(e *Env) { e.Config.Bandwidth = true }}, OK, "members learn", ""},
		{"bandwidth", "client only", []func(*Env){clientOnly}, Skipped, "only waypoints", ""},
		{"bandwidth", "no configuration", []func(*Env){func(e *Env) { e.Config.Err = errors.New("bad") }}, Skipped, "no usable configuration", ""},

		{"waypoint-choice", "no agent", nil, Skipped, "does not run", ""},
		{"waypoint-choice", "who may not ask the agent", []func(*Env){unasked}, Skipped, "only root can tell", ""},
		{"waypoint-choice", "agent is a waypoint only", []func(*Env){running, func(e *Env) { e.Config.Client = false }}, Skipped, "only clients", ""},
		{"waypoint-choice", "all are known", []func(*Env){running, choice(Choice{})}, OK, "knows all", ""},
		{"waypoint-choice", "unknown", []func(*Env){running, choice(Choice{Unknown: []string{"carlo", "eev"}, Warning: "no detours"})}, Warning, "no waypoint carlo, eev; no detours", "client.use"},
		{"waypoint-choice", "down", []func(*Env){running, choice(Choice{Warning: "bob is down"})}, Warning, "bob is down", "dcol status"},

		{"measuring", "no agent", nil, Skipped, "does not run", ""},
		{"measuring", "who may not ask the agent", []func(*Env){unasked}, Skipped, "only root can tell", ""},
		{"measuring", "agent is a waypoint only", []func(*Env){running, func(e *Env) { e.Config.Client = false }}, Skipped, "only clients", ""},
		{"measuring", "all", []func(*Env){running}, OK, "all active connections", ""},
		{"measuring", "too many", []func(*Env){running, func(e *Env) { e.Sampling = &Sampling{Active: 900, Measured: 80} }}, Info, "80 of 900", ""},
	} {
		t.Run(c.code+"/"+c.name, func(t *testing.T) {
			env := healthy()
			for _, change := range c.change {
				change(env)
			}
			got := check(t, c.code).Run(t.Context(), env)
			if got.State != c.state || !strings.Contains(got.Detail, c.detail) || !strings.Contains(got.Fix, c.fix) {
				t.Errorf("got %+v\nwant %s, detail with %q, fix with %q", got, c.state, c.detail, c.fix)
			}
			if (got.State == Failed || got.State == Warning) && got.Fix == "" {
				t.Error("no fix")
			}
		})
	}
}

// Without root, on a healthy host whose agent runs, no check reports a problem.
func TestWithoutRoot(t *testing.T) {
	e := healthy()
	e.AgentUnasked = fs.ErrPermission
	e.Identity = Identity{Err: fs.ErrPermission}
	e.Config.Joined = true
	e.set("proc/self/status", "CapEff:\t0000000000000000")
	e.set("proc/sys/net/mptcp/pm_type", "1")
	e.set("proc/sys/net/netfilter/nf_conntrack_acct", "1")
	e.System.ListenUDP = func(string) error { return os.NewSyscallError("bind", syscall.EADDRINUSE) }
	e.System.ForwardDrops = func() ([]string, error) { return nil, syscall.EPERM }
	e.System.Endpoints = func() (int, error) { return 0, syscall.EPERM }
	e.System.MarkUses = func() ([]netstate.MarkUse, error) { return nil, syscall.EPERM }
	e.System.TryInBandSender = func(string) error { return errCannotTry }
	e.System.TryInBandReceiver = func() error { return errCannotTry }
	e.System.TryWireGuard = func() (string, error) { return "", errCannotTry }
	e.System.TryTunnelRouting = func() error { return errCannotTry }
	for _, f := range Examine(t.Context(), e, Checks()) {
		if f.State == Failed || f.State == Warning {
			t.Errorf("%+v", f)
		}
	}
}

func check(t *testing.T, code string) Check {
	t.Helper()
	for _, c := range Checks() {
		if c.Code == code {
			return c
		}
	}
	t.Fatalf("no check %q", code)
	return Check{}
}
