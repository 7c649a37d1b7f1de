package tunnel

import (
	"fmt"
	"net"
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

// ours lists the ends of tunnels that this host has.
func ours() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list this host's interfaces: %w", err)
	}
	var names []string
	for _, i := range all {
		if Ours(i.Name) {
			names = append(names, i.Name)
		}
	}
	return names, nil
}
