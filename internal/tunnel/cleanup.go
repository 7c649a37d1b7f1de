package tunnel

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/netstate/nft"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

// CleanUp removes every trace of tunnels, of both sides, from the calling thread's
// network namespace; no agent may run. Doing it again is harmless.
func CleanUp() error {
	return errors.Join(
		netstate.CleanUpTunnels(),
		openvpn.CleanUp(openvpnInterface), wireguard.CleanUpSharedPort(), nft.RemoveTable(guardTable),
	)
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
