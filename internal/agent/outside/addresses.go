package outside

import (
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// Settle is the delay before changed addresses are published. A host that moves loses its address before
// it has another.
const Settle = 2 * time.Second

// OwnAddresses returns this host's addresses, without those of our tunnels.
func OwnAddresses(routes *netstate.Addresses) (own []netip.Addr, err error) {
	all, err := routes.Usable()
	if err != nil {
		return nil, err
	}
	interfaces, err := routes.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		ours := slices.ContainsFunc(interfaces, func(i netstate.Interface) bool { return i.Index == a.IfIndex && tunnel.Ours(i.Name) })
		if !ours {
			own = append(own, a.Addr)
		}
	}
	return own, nil
}
