package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// networkChecks returns the checks of the host's network and firewall.
func networkChecks() []Check {
	return []Check{
		{"rp-filter", "Reverse path filter", checkRPFilter},
		{"nftables", "nftables", waypointOnly(checkNftables)},
		{"conntrack", "Connection tracking", waypointOnly(checkConntrack)},
		{"forwarding", "Forwarding", waypointOnly(checkForwarding)},
		{"firewall", "Firewall on forwarded packets", waypointOnly(checkFirewall)},
		{"marks", "Marks of other programs", checkMarks},
		{"port", "Session port", waypointOnly(checkPort)},
		{"outside", "From outside", waypointOnly(checkOutside)},
		{"bandwidth", "Bandwidth for members", waypointOnly(checkBandwidth)},
	}
}

// waypointOnly skips a check on a member that is not a waypoint.
func waypointOnly(check runner) runner {
	return func(ctx context.Context, e *Env) Result {
		if errors.Is(e.Config.Err, fs.ErrPermission) {
			return skipped("needs root to read whether this is a waypoint")
		}
		if !e.Config.Waypoint {
			return skipped("only waypoints need it")
		}
		return check(ctx, e)
	}
}

// checkRPFilter checks reverse path filters. The kernel uses the greater of the value for "all" and the interface's own
// (Documentation/networking/ip-sysctl.rst). The value 1 is strict (RFC 3704): packets are dropped if the answers would
// leave by another interface.
func checkRPFilter(_ context.Context, e *Env) Result {
	const key = "net/ipv4/conf"
	all, err := e.sysctlInt(key + "/all/rp_filter")
	if err != nil {
		return skipped("cannot read net.ipv4.conf.all.rp_filter: %v", err)
	}
	files, err := fs.Glob(e.FS, "proc/sys/"+key+"/*/rp_filter")
	if err != nil {
		return skipped("cannot list the interfaces: %v", err)
	}
	var strict, fixes []string
	if all == 1 {
		fixes = append(fixes, "net.ipv4.conf.all.rp_filter=2")
	}
	for _, file := range files {
		name := path.Base(path.Dir(file))
		// Our tunnels work with a strict filter.
		if slices.Contains([]string{"all", "default", "lo"}, name) || strings.HasPrefix(name, "dcol") {
			continue
		}
		own, err := e.sysctlInt(key + "/" + name + "/rp_filter")
		if err != nil || max(all, own) != 1 {
			continue // the interface is gone, or not strict
		}
		strict = append(strict, name)
		if all == 0 {
			// In sysctl's notation a dot in a name is written as a slash.
			fixes = append(fixes, "net.ipv4.conf."+strings.ReplaceAll(name, ".", "/")+".rp_filter=2")
		}
	}
	if len(strict) > 0 {
		return warning("sysctl -w "+strings.Join(fixes, " "),
			"strict on %s: answers that take another path than the kernel expects are dropped", strings.Join(strict, ", "))
	}
	return ok("not strict on any interface")
}

func checkNftables(_ context.Context, e *Env) Result {
	_, err := e.System.ForwardDrops()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return skipped("needs root to ask the kernel")
	case err != nil:
		return failed("boot a kernel with CONFIG_NF_TABLES and CONFIG_NF_NAT, or: modprobe nf_tables nft_chain_nat nft_masq",
			"nftables does not work: %v", err)
	}
	return ok("works")
}

func checkConntrack(_ context.Context, e *Env) Result {
	maximum, err := e.sysctlInt("net/netfilter/nf_conntrack_max")
	if errors.Is(err, fs.ErrNotExist) {
		return info("not loaded yet; the agent loads it")
	}
	if err != nil {
		return skipped("cannot read net.netfilter.nf_conntrack_max: %v", err)
	}
	count, err := e.sysctlInt("net/netfilter/nf_conntrack_count")
	if err != nil {
		return skipped("cannot read net.netfilter.nf_conntrack_count: %v", err)
	}
	// The kernel drops new connections when the table is full, and members' connections are added
	// to the host's.
	if count > maximum/10*8 {
		return warning("sysctl -w net.netfilter.nf_conntrack_max="+strconv.Itoa(2*maximum),
			"%d of at most %d connections are in use", count, maximum)
	}
	accounting, err := e.sysctl("net/netfilter/nf_conntrack_acct")
	if e.AgentRuns && err == nil && accounting != "1" {
		return warning("sysctl -w net.netfilter.nf_conntrack_acct=1, and find what switched it off",
			"bytes are not counted, so the attribution log lacks them")
	}
	return ok("%d of at most %d connections in use", count, maximum)
}

func checkForwarding(_ context.Context, e *Env) Result {
	var off []string
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		// Without IPv6 there is nothing to forward.
		if value, err := e.sysctl(key); err == nil && value == "0" {
			off = append(off, strings.ReplaceAll(key, "/", "."))
		}
	}
	switch {
	case len(off) == 0:
		return ok("on")
	case e.AgentUnasked != nil:
		return e.untold("%s off, which is a problem only while the agent runs", strings.Join(off, ", "))
	case !e.AgentRuns:
		return info("%s off; the agent switches it on while it runs", strings.Join(off, ", "))
	}
	return failed("restart the agent, and find what switched it off (sysctl.d, another daemon)",
		"%s off although the agent runs: detours do not work", strings.Join(off, ", "))
}

func checkFirewall(_ context.Context, e *Env) Result {
	drops, err := e.System.ForwardDrops()
	if err != nil {
		return skipped("cannot ask nftables: %v", err)
	}
	if len(drops) > 0 {
		var fixes []string
		for _, chain := range drops {
			for _, rule := range e.forwarded() {
				fixes = append(fixes, "nft insert rule "+chain+" "+rule+" accept")
			}
		}
		return warning(strings.Join(fixes, "; ")+" (and the same in your firewall's own configuration)",
			"%s drops packets that no rule accepts, including those of members' detours", strings.Join(drops, ", "))
	}
	// The policies of legacy iptables can only be read with its own program.
	if tables, err := e.read("proc/net/ip_tables_names"); err == nil && slices.Contains(strings.Fields(tables), "filter") {
		return info("legacy iptables is in use: its FORWARD chain must accept connections with status DNAT (iptables-legacy -S FORWARD)")
	}
	return ok("no chain drops packets by default")
}

// forwarded describes the packets that a firewall must let pass. The table dcol itself restricts
// packets out of tunnels.
func (e *Env) forwarded() []string {
	rules := []string{"ct status dnat"}
	if e.Config.offers(kindWireGuard) || e.Config.offers(kindOpenVPN) {
		rules = append(rules, `iifname '"dcol*"'`, `oifname '"dcol*"'`)
	}
	return rules
}

// checkBandwidth checks whether the waypoint can tell members that its line is full.
func checkBandwidth(_ context.Context, e *Env) Result {
	switch {
	case e.Config.Err != nil:
		return skipped("no usable configuration tells it")
	case e.Config.Bandwidth:
		return ok("limited, so members learn when it is used up")
	}
	return optional("set waypoint.bandwidth to a little less than the line carries in each direction (this turns waypoint.fast_path off, so forwarding takes more processor time)",
		"not limited: if members use up the line, the waypoint does not notice, and they stay; it only notices that its processors are busy")
}

func checkPort(_ context.Context, e *Env) Result {
	if e.Config.Err != nil {
		return skipped("no usable configuration names it")
	}
	return e.checkUDP(e.Config.Listen, "session.listen", failed)
}

// checkUDP checks that the agent can bind an address, which is set by the configuration's key.
// amiss is the severity if it cannot.
func (e *Env) checkUDP(address, key string, amiss verdict) Result {
	err := e.System.ListenUDP(address)
	inUse := errors.Is(err, syscall.EADDRINUSE)
	switch {
	case errors.Is(err, fs.ErrPermission): // a port below 1024
		return skipped("needs root to try UDP %s", address)
	case inUse && e.AgentUnasked != nil:
		return e.untold("UDP %s is in use, by the agent or another program", address)
	case err == nil && e.AgentUnasked != nil:
		return e.untold("UDP %s is free, which is a problem only while the agent runs", address)
	case inUse && e.AgentRuns:
		return ok("UDP %s is in use by the agent", address)
	case inUse:
		return amiss("find the program with `ss -ulpn`; end it, or set "+key+" to another port",
			"UDP %s is in use by another program", address)
	case err != nil:
		return amiss("set "+key+" to an address of this host", "UDP %s cannot be used: %v", address, err)
	case e.AgentRuns:
		return amiss("restart the agent", "the agent runs, but does not listen on UDP %s", address)
	}
	return ok("UDP %s is free", address)
}
