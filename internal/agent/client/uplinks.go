package client

import (
	"maps"
	"slices"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// uplinks holds the uplinks that are offered to the path manager.
type uplinks struct {
	wanted  bool
	offered map[path.DetourID]path.Detour
	index   map[path.DetourID]int // of the interface
}

func newUplinks(policies []config.Policy) uplinks {
	u := uplinks{offered: make(map[path.DetourID]path.Detour), index: make(map[path.DetourID]int)}
	for _, p := range policies {
		u.wanted = u.wanted || p.OfUplinks() || len(p.Quota) > 0 || len(p.Limit) > 0 || p.Announce
	}
	return u
}

// bound returns the interface to which a subflow is bound, so that routing takes that uplink; 0: none.
func (u *uplinks) bound(a path.CreateSubflow) int {
	if a.Direct || a.Kind != path.Uplink {
		return 0
	}
	for id, d := range u.offered {
		if d.Waypoint == a.Waypoint && d.Local == a.Local {
			return u.index[id]
		}
	}
	return 0
}

// take takes in the host's present uplinks. It returns offers of new ones, and withdrawals of those that are gone.
func (u *uplinks) take(list []netstate.Uplink) (changes []path.Event) {
	now := make(map[path.DetourID]bool)
	for _, l := range list {
		if tunnel.Ours(l.Interface) {
			continue
		}
		id := path.DetourID("uplink " + l.Interface + " " + l.Addr.String())
		now[id], u.index[id] = true, l.IfIndex
		if _, ok := u.offered[id]; !ok {
			u.offered[id] = path.Detour{ID: id, Kind: path.Uplink, Waypoint: l.Interface, Local: l.Addr}
			changes = append(changes, path.DetourOffered{Detour: u.offered[id]})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(u.offered)) {
		if !now[id] {
			delete(u.offered, id)
			delete(u.index, id)
			changes = append(changes, path.DetourWithdrawn{ID: id})
		}
	}
	return changes
}

// offerUplinks offers new uplinks to the path manager, and withdraws those that are gone.
func (c *Client) offerUplinks() {
	if !c.host.uplinks.wanted {
		return
	}
	list, err := c.host.routes.Uplinks()
	if err != nil {
		c.log.Warn("this host's uplinks cannot be listed", "err", err)
		return
	}
	c.backlog = append(c.backlog, c.host.uplinks.take(list)...)
}
