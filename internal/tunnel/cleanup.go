package tunnel

import (
	"errors"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

// CleanUp removes every trace of tunnels, of both sides, from the calling thread's
// network namespace; no agent may run. Doing it again is harmless.
func CleanUp() error {
	return errors.Join(
		netstate.CleanUpTunnels(),
		openvpn.CleanUp(openvpnInterface), wireguard.CleanUpSharedPort(), nft.RemoveTable(guardTable),
		nft.RemoveTable(outputGuardTable(wireguardInterface)), nft.RemoveTable(outputGuardTable(openvpnInterface)),
	)
}
