package client

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/agent/client/policies"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/gateway"
	"github.com/detour-collective/dcol/internal/converter/relay"
)

// modes are the relay's modes by the value of client.converter.use. The value never has none.
var modes = map[config.UseConverter]choice.Mode{config.ConvertAuto: choice.Auto, config.ConvertAlways: choice.Always}

// Mode returns the relay's mode for a value of client.converter.use.
func Mode(use config.UseConverter) choice.Mode { return modes[use] }

// Converting translates the client's configuration into the relay's orders. If no converter is used, only the proxy is served,
// as programs that are set to it have no other way; without a proxy, it returns nil. marks are the bits of packet marks that
// dcol owns.
func Converting(c config.Client, marks uint32) *relay.Use {
	mode, ok := modes[c.Converter.Use]
	switch {
	case !ok && c.Converter.Proxy == "":
		return nil
	case !ok:
		return &relay.Use{Mode: choice.Never, Proxy: c.Converter.Proxy}
	}
	use := &relay.Use{
		Mode: mode, Exclude: unconverted(c), ExcludeDomains: c.Converter.ExcludeDomains,
		ExcludePrograms: c.Converter.ExcludePrograms, Proxy: c.Converter.Proxy, Gateway: c.Converter.Gateway, KeepIPv6: c.Converter.KeepIPv6,
		FastOpen: c.Converter.FastOpen,
	}
	switch folder := c.Converter.Capture; folder {
	case config.CaptureNone, "":
	case config.CaptureHost:
		use.Capture = &relay.Capture{Exclude: c.Converter.ExcludeCgroups}
	default:
		use.Capture = &relay.Capture{Cgroup: folder, Exclude: c.Converter.ExcludeCgroups}
	}
	use.ExcludePorts = policies.PortNumbers(c.Converter.ExcludePorts)
	if len(use.Gateway) > 0 {
		use.UnreachedMark = gateway.UnreachedMark(marks)
	}
	if c.Converter.Tunnel != "" {
		use.TunnelMark = tunnelMark(marks)
	}
	return use
}

// unconverted returns the networks to which the user wants no connection converted: those without detours, too.
func unconverted(c config.Client) []netip.Prefix {
	return slices.Concat(c.Exclude, c.Converter.Exclude)
}

// tunnelMark returns the packet mark of the relay's sockets to converters in tunnels: the second lowest bit of marks. No
// packet of another role has this mark: a gateway uses the bit in packets' marks only together with the lowest one, and a
// waypoint's marks also have the highest bit.
func tunnelMark(marks uint32) uint32 {
	marks &^= marks & -marks
	return marks & -marks
}
