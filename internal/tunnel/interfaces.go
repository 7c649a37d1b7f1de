package tunnel

import (
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/path"
)

// The waypoint's ends, one of each kind. A client's are called the same, and by
// number: it has one for each waypoint.
const (
	wireguardInterface = "dcolwg"
	openvpnInterface   = "dcolov"
)

// Interface is the client's end of its tunnel of a kind to the waypoint that is the
// n-th of its configuration, from 0 on; empty for a kind without an interface.
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

// Ours says whether an interface is the end of one of our tunnels.
func Ours(iface string) bool { return strings.HasPrefix(iface, "dcol") }
