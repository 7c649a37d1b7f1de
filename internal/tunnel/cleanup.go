package tunnel

import (
	"errors"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

// CleanUp removes all traces of client and waypoint tunnels from the calling thread's network
// namespace. No agent may be running. It may be called repeatedly.
func CleanUp() error {
	return errors.Join(
		netstate.CleanUpTunnels(), netstate.RemoveTunnelsOnly(),
		openvpn.CleanUp(openvpnInterface), wireguard.CleanUpSharedPort(), nft.RemoveTable(guardTable),
		nft.RemoveTable(outputGuardTable(wireguardInterface)), nft.RemoveTable(outputGuardTable(openvpnInterface)),
	)
}
