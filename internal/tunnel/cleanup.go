package tunnel

import (
	"errors"
	"strings"

	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// CleanUp removes every trace of tunnels, of both sides, from the calling thread's
// network namespace; no agent may run. Doing it again is harmless.
func CleanUp() error {
	return errors.Join(netstate.CleanUpTunnels(), openvpn.CleanUp(openvpnInterface), cleanUpGuard())
}

// Ours says whether an interface is the end of one of our tunnels.
func Ours(iface string) bool { return strings.HasPrefix(iface, "dcol") }
