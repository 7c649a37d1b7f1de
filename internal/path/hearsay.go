package path

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/path/claim"
)

// This file takes in what other members claim to have measured of waypoints, and computes what this host tells them.
// A claim decides only one thing: the order in which connections that explore try waypoints that this host has not
// measured and that are otherwise equal. Whatever is claimed, all other connections take the same detours as without
// it.

// ClaimsHeard holds the claims of all other members about the waypoints in use, with verified signatures. It replaces
// the previous one.
type ClaimsHeard struct{ Claims []claim.Heard }

func (ClaimsHeard) event() {}

// hear takes in claims and compares them with this host's measurements.
func (k *detours) hear(ev ClaimsHeard, now time.Time) {
	k.claims.Hear(ev.Claims, now)
	k.claims.Compare(k.history.claims(claim.CompareFrom, now), claim.GoodputOf(k.history.mostGiven(now)), now)
}

// mostGiven returns the highest goodput recently measured over any path, in bits of payload a second.
func (h history) mostGiven(now time.Time) (most float64) {
	for _, r := range h {
		if within(r.goodputAt, now, trustsFor) {
			most = max(most, r.goodput)
		}
	}
	return most
}

// Claims returns what this host tells other members of waypoints, at most claim.Most claims. The waypoints that were
// measured towards most networks come first.
func (m *Manager) Claims(now time.Time) []claim.Claim {
	all := m.detours.history.claims(claim.ShareFrom, now)
	return all[:min(len(all), claim.Most)]
}

// claims summarises the recent measurements through each waypoint. least is the number of networks of servers that
// each class needs. The waypoints measured towards most networks come first.
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

// rank returns Prospect.Rank of a waypoint for a connection that explores. A measured waypoint ranks as if nothing
// were claimed of it.
func (k *detours) rank(waypoint string, measured, bulk bool, now time.Time) int {
	if measured {
		return claim.Hint{}.Rank(bulk)
	}
	return k.claims.Hint(waypoint, now).Rank(bulk)
}
