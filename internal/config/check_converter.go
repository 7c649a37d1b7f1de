package config

import (
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// longestDomain is the length of the longest name in DNS (RFC 1035, section 2.3.4).
const longestDomain = 253

// longestProgram is the length of the longest path of an executable that the relay is asked for.
const longestProgram = 1024

func (c *Convert) check(p *tomlfile.Problems) {
	if u := c.Use; u != ConvertNever && u != ConvertAuto && u != ConvertAlways {
		p.At("client.converter.use", `must be "never", "auto" or "always", not %q`, u)
	}
	if c.Tunnel != "" && c.Tunnel != WireGuard {
		p.At("client.converter.tunnel", `must be "" or "wireguard", the only kind of tunnel that encrypts, not %q`, c.Tunnel)
	}
	checkPorts(p, "client.converter.exclude_ports", c.ExcludePorts)
	for _, d := range c.ExcludeDomains {
		if d == "" || len(d) > longestDomain || strings.ContainsAny(d, "*/: ") || strings.HasPrefix(d, ".") {
			p.At("client.converter.exclude_domains", `%q is not a domain, such as "example.org", which includes all names below it`, d)
		}
	}
	if c.Proxy != "" {
		if at, err := netip.ParseAddrPort(c.Proxy); err != nil || at.Port() == 0 {
			p.At("client.converter.proxy", `%q is not an address and a port, such as "127.0.0.1:1080"`, c.Proxy)
		} else if !at.Addr().IsLoopback() && !at.Addr().IsPrivate() && !at.Addr().IsLinkLocalUnicast() {
			p.At("client.converter.proxy", "%v is not a private address: the proxy has no password, so only this host or its LAN may reach it", at.Addr())
		}
	}
	for _, name := range c.Gateway {
		if !isInterfaceName(name) {
			p.At("client.converter.gateway", "%q is not an interface's name", name)
		}
	}
	if c.KeepIPv6 && len(c.Gateway) == 0 {
		p.At("client.converter.keep_ipv6", "concerns the hosts of a LAN for which this host is the router: name its interface in gateway")
	}
	if x := c.Capture; x != CaptureNone && x != CaptureHost && !filepath.IsAbs(x) {
		p.At("client.converter.capture", `must be "none", "host" or the absolute path of a cgroup's folder, not %q`, x)
	}
	for _, path := range c.ExcludePrograms {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || len(path) > longestProgram {
			p.At("client.converter.exclude_programs", "%q is not the absolute path of an executable, such as \"/usr/bin/ssh\"", path)
		}
	}
	if len(c.ExcludePrograms) > 0 && c.Capture != CaptureNone && c.Capture != "" {
		p.At("client.converter.exclude_programs", "holds under dcol run only, not for programs that capture reaches: name their cgroups in exclude_cgroups, or set capture to \"none\"")
	}
	for _, folder := range c.ExcludeCgroups {
		if !filepath.IsAbs(folder) {
			p.At("client.converter.exclude_cgroups", "%q is not the absolute path of a cgroup's folder, such as \"/sys/fs/cgroup/backup.slice\"", folder)
		}
	}
}

// isInterfaceName follows the kernel's dev_valid_name.
func isInterfaceName(name string) bool {
	return name != "" && len(name) < 16 && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n")
}
