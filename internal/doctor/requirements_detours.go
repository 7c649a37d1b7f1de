package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

// The kinds of detours that need something of the host, as named in the configuration.
const (
	kindInBand    = "in-band"
	kindWireGuard = "wireguard"
	kindOpenVPN   = "openvpn"
)

// detourChecks returns the checks for single kinds of detours. They run if the configuration uses
// the kind.
func detourChecks() []Check {
	uses, offers := Config.uses, Config.offers
	wants := func(c Config, kind string) bool { return c.uses(kind) || c.offers(kind) }
	return []Check{
		{"in-band-client", "In-band detours of this host", wanting(uses, "does not use in-band detours", checkInBandClient, kindInBand)},
		{"tcp-timestamps", "TCP timestamps", wanting(uses, "does not use in-band detours", checkTimestamps, kindInBand)},
		{"in-band-waypoint", "In-band detours for others", wanting(offers, "does not offer in-band detours", checkInBandWaypoint, kindInBand)},
		{"wireguard", "WireGuard", wanting(wants, "does not name WireGuard", checkWireGuard, kindWireGuard)},
		{"openvpn", "OpenVPN", wanting(wants, "does not name OpenVPN", checkOpenVPN, kindOpenVPN)},
		{"openvpn-port", "OpenVPN's port", wanting(offers, "does not offer OpenVPN", checkOpenVPNPort, kindOpenVPN)},
		{"tunnel-routing", "Routing into tunnels", wanting(uses, "uses neither WireGuard nor OpenVPN", checkTunnelRouting, kindWireGuard, kindOpenVPN)},
	}
}

// wanting skips a check if the configuration uses none of the kinds.
func wanting(wants func(Config, string) bool, otherwise string, check runner, kinds ...string) runner {
	return func(ctx context.Context, e *Env) Result {
		switch {
		case e.Config.Err != nil:
			return skipped("no usable configuration asks for it")
		case !slices.ContainsFunc(kinds, func(k string) bool { return wants(e.Config, k) }):
			return skipped("the configuration %s", otherwise)
		}
		return check(ctx, e)
	}
}

// lacking returns the severity if this host cannot provide a kind of detours in use. It is lower for a client, because
// other kinds may be used instead. A client's list has tunnels by default, and perhaps no waypoint offers them.
func (e *Env) lacking(kind string) verdict {
	c := e.Config
	switch {
	case c.uses(kind) && len(c.Kinds) == 1, c.offers(kind) && len(c.Offers) == 1:
		return failed
	case c.offers(kind), kind == kindInBand:
		return warning
	}
	return optional
}

func checkInBandClient(_ context.Context, e *Env) Result {
	if err := e.System.TryInBandSender(e.Config.Cgroup); err != nil {
		return inBandFailed(err, "", e.lacking(kindInBand))
	}
	whose := "all programs"
	if e.Config.Cgroup != "" {
		whose = "the programs of " + e.Config.Cgroup
	}
	return ok("for %s: the eBPF programs were attached and removed as a test", whose)
}

func checkInBandWaypoint(_ context.Context, e *Env) Result {
	if !e.Config.Authenticator {
		return ok("admitted by source address alone (in_band_authenticator = false)")
	}
	if err := e.System.TryInBandReceiver(); err != nil {
		return inBandFailed(err, ", or set waypoint.in_band_authenticator = false to go by source addresses alone", e.lacking(kindInBand))
	}
	return ok("the eBPF program that authenticates SYNs was attached and removed as a test")
}

func inBandFailed(err error, or string, amiss verdict) Result {
	var refused *inband.UnavailableError
	switch {
	case errors.Is(err, errCannotTry):
		return skipped("%v", err)
	case errors.As(err, &refused):
		return amiss(refused.Fix+or, "%v", refused.Err)
	}
	return amiss(fixReport+or, "%v", err)
}

// checkTimestamps checks TCP timestamps, whose field carries the authenticator.
func checkTimestamps(_ context.Context, e *Env) Result {
	value, err := e.sysctl("net/ipv4/tcp_timestamps")
	switch {
	case err != nil:
		return skipped("cannot read net.ipv4.tcp_timestamps: %v", err)
	case value == "0":
		return e.lacking(kindInBand)("sysctl -w net.ipv4.tcp_timestamps=1",
			"off: waypoints that authenticate in-band SYNs, as they do by default, refuse those of this host")
	}
	return ok("on, with room for the authenticator of in-band SYNs")
}

func checkWireGuard(_ context.Context, e *Env) Result {
	kind, err := e.System.TryWireGuard()
	var refused *wireguard.UnavailableError
	switch {
	case errors.Is(err, errCannotTry):
		return skipped("%v", err)
	case errors.As(err, &refused):
		return e.lacking(kindWireGuard)(refused.Fix, "%v", refused.Err)
	case err != nil:
		return e.lacking(kindWireGuard)(fixReport, "%v", err)
	case kind == "kernel":
		return ok("in the kernel")
	}
	return ok("embedded, because the kernel has none: it works, but uses more processor time")
}

func checkOpenVPN(_ context.Context, e *Env) Result {
	amiss := e.lacking(kindOpenVPN)
	path, version, err := e.System.FindOpenVPN()
	var missing *openvpn.MissingError
	var old *openvpn.OldError
	switch {
	case errors.As(err, &missing):
		return amiss("apt-get install openvpn", "not installed")
	case errors.As(err, &old):
		return amiss("upgrade the package openvpn (Debian 12 has 2.6)", "%s is version %s, which is too old", old.Path, old.Version)
	case err != nil:
		return amiss("reinstall the package openvpn", "%v", err)
	}
	if _, err := fs.Stat(e.FS, "dev/net/tun"); err != nil {
		return amiss("modprobe tun; in a container, give it /dev/net/tun", "%s is version %s, but there is no /dev/net/tun", path, version)
	}
	return ok("%s, version %s", path, version)
}

func checkOpenVPNPort(_ context.Context, e *Env) Result {
	return e.checkUDP(fmt.Sprintf(":%d", e.Config.OpenVPNPort), "waypoint.openvpn_port", e.lacking(kindOpenVPN))
}

func checkTunnelRouting(_ context.Context, e *Env) Result {
	err := e.System.TryTunnelRouting()
	amiss := warning
	if !slices.ContainsFunc(e.Config.Kinds, func(k string) bool { return k != kindWireGuard && k != kindOpenVPN }) {
		amiss = failed
	}
	switch {
	case errors.Is(err, errCannotTry):
		return skipped("%v", err)
	case errors.Is(err, netstate.ErrNoIPv6):
		return info("by source address, for IPv4 only: the host has no IPv6 for new interfaces")
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
		return amiss("boot a kernel with CONFIG_IP_MULTIPLE_TABLES (Debian's has it)", "the kernel cannot route by source address: %v", err)
	case err != nil:
		return amiss(fixReport, "%v", err)
	}
	return ok("by source address: a rule and a table were created and removed as a test")
}
