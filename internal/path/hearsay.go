package path

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/claim"
)

// This file uses what other members measured of waypoints, and computes what this host shares. A claim decides nothing
// but the order in which the connections that explore try waypoints that are otherwise equal and that this host has not
// measured. So whatever is claimed, all other connections take the same detours as without it.

// ClaimsHeard brings all claims of other members about the waypoints in use, whose signatures were verified. It replaces
// those of the last one.
type ClaimsHeard struct{ Claims []claim.Heard }

func (ClaimsHeard) event() {}

// hear takes claims, and compares them with what this host measured.
func (k *detours) hear(ev ClaimsHeard, now time.Time) {
	k.claims.Hear(ev.Claims, now)
	k.claims.Compare(k.history.claims(claim.CompareFrom, now), claim.GoodputOf(k.history.mostGiven(now)), now)
}

// mostGiven returns the highest goodput that was measured lately over any path, in bits of payload a second.
func (h history) mostGiven(now time.Time) (most float64) {
	for _, r := range h {
		if within(r.goodputAt, now, trustsFor) {
			most = max(most, r.goodput)
		}
	}
	return most
}

// Claims returns what this host may tell others of waypoints, at most claim.Most: first that of which it knows most.
func (m *Manager) Claims(now time.Time) []claim.Claim {
	all := m.detours.history.claims(claim.ShareFrom, now)
	return all[:min(len(all), claim.Most)]
}

// claims returns summaries of what was measured lately through each waypoint, over at least so many networks: first those
// over most.
func (h history) claims(least int, now time.Time) (list []claim.Claim) {
	networks := make(map[string][]claim.Measured)
	for key, r := range h {
		if key.waypoint == "" || !within(r.at, now, trustsFor) {
			continue
		}
		n := claim.Measured{Loss: r.loss, Packets: r.packets}
		if within(r.goodputAt, now, trustsFor) {
			n.Goodput = r.goodput
		}
		networks[key.waypoint] = append(networks[key.waypoint], n)
	}
	names := slices.SortedFunc(maps.Keys(networks), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(networks[b]), len(networks[a])), cmp.Compare(a, b))
	})
	for _, name := range names {
		if c := claim.Summary(name, networks[name], least); !c.IsZero() {
			list = append(list, c)
		}
	}
	return list
}

// rank orders a detour among those that are otherwise equal, for a connection that explores.
func (k *detours) rank(waypoint string, measured, bulk bool, now time.Time) int {
	if measured {
		return claim.Hint{}.Rank(bulk)
	}
	return k.claims.Hint(waypoint, now).Rank(bulk)
}
