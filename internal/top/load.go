package top

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/api"
)

// Load has the rates of all subflows through an address of a waypoint, or on the direct path if there is no waypoint.
// Rates are in bits per second.
type Load struct {
	Waypoint string         `json:"waypoint,omitempty"`
	Addr     netip.AddrPort `json:"address"`
	Receive  float64        `json:"receive_bps"`
	Send     float64        `json:"send_bps"`
}

// Loads returns the load of the direct paths, and of each waypoint's address that carries data, in a fixed order.
func Loads(u *api.Using) []Load {
	sums := loads(u)
	list := make([]Load, 0, len(sums))
	for id, r := range sums {
		list = append(list, Load{id.name, id.addr, r.in, r.out})
	}
	slices.SortFunc(list, func(a, b Load) int { return cmp.Or(cmp.Compare(a.Waypoint, b.Waypoint), a.Addr.Compare(b.Addr)) })
	return list
}

func loads(u *api.Using) map[waypointID]rates {
	sums := map[waypointID]rates{{}: {}}
	for i := range u.Connections {
		for j := range u.Connections[i].Subflows {
			s, id := &u.Connections[i].Subflows[j], waypointID{}
			if s.Waypoint != "" {
				if id = passes(s, u.Waypoints); id == (waypointID{}) {
					id.name = s.Waypoint // it is not in the list any more
				}
			}
			sums[id] = rates{sums[id].in + s.ReceiveRate, sums[id].out + s.SendRate}
		}
	}
	return sums
}
