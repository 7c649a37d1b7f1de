package tunnel

import (
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/path"
)

// The interfaces of the waypoint's ends, one of each kind. A client's interfaces have the same
// names with a number, because it has one for each waypoint.
const (
	wireguardInterface = "dcolwg"
	openvpnInterface   = "dcolov"
)

// Interface returns the name of the client's tunnel interface to the n-th waypoint of its
// configuration, from 0. It is empty for a kind without an interface.
func Interface(kind path.Kind, n int) string {
	switch kind {
	case path.WireGuard:
		return wireguardInterface + strconv.Itoa(n)
	case path.OpenVPN:
		return openvpnInterface + strconv.Itoa(n)
	case path.Mapped, path.InBand:
	}
	return ""
}

// Ours reports whether an interface belongs to one of our tunnels.
func Ours(iface string) bool { return strings.HasPrefix(iface, "dcol") }
