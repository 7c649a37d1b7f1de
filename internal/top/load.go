package top

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

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

// ServedRate is the rate at which this waypoint forwards for a member, in both directions together and in bits per second.
type ServedRate struct {
	Member string  `json:"member"`
	Rate   float64 `json:"bps"`
}

// ServedRates returns the rates of the members that a waypoint serves, from what it has carried for them between two states.
// There are none if the agent was started again in between, because its counts begin with it.
func ServedRates(old, now *api.Status, passed time.Duration) []ServedRate {
	list := []ServedRate{}
	if old.Serving == nil || now.Serving == nil || passed <= 0 || !old.Since.Equal(now.Since) {
		return list
	}
	before := make(map[string]uint64, len(old.Serving.Members))
	for i := range old.Serving.Members {
		before[old.Serving.Members[i].Member] = old.Serving.Members[i].Bytes
	}
	for i := range now.Serving.Members {
		m := &now.Serving.Members[i]
		if m.Expelled {
			continue
		}
		r := ServedRate{Member: m.Member}
		if was := before[m.Member]; m.Bytes > was {
			r.Rate = 8 * float64(m.Bytes-was) / passed.Seconds()
		}
		list = append(list, r)
	}
	return list
}
