package member

import (
	"context"
	"iter"
	"slices"

	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/path/claim"
)

// mostClaimants bounds the members whose claims are returned.
const mostClaimants = 1024

// ExchangeClaims publishes this host's own measurements of waypoints in the directory, and returns those that other members
// have published about the waypoints in about.
func (m *Member) ExchangeClaims(ctx context.Context, own []claim.Claim, about []string) (heard []claim.Heard, err error) {
	var publish []directory.Measurement
	err = m.Directory(ctx, func(d *directory.Directory) {
		publish = publishable(own, func(name string) bool {
			v, ok := d.Get(name)
			return ok && v.Record.IsWaypoint()
		})
		heard = claimsOf(d.All(), m.self, about)
	})
	if err == nil {
		m.Measured(publish)
	}
	return heard, err
}

// publishable returns the claims about waypoints of the directory. Other waypoints are private to this host.
func publishable(own []claim.Claim, isWaypoint func(string) bool) (list []directory.Measurement) {
	for _, c := range own {
		if isWaypoint(c.Waypoint) {
			list = append(list, directory.Measurement{Waypoint: c.Waypoint, Loss: uint8(c.Loss), Goodput: uint8(c.Goodput)})
		}
	}
	return list
}

// claimsOf returns the claims of members other than self about some waypoints. The directory has verified their signatures.
func claimsOf(all iter.Seq[*directory.Verified], self string, about []string) (list []claim.Heard) {
	for v := range all {
		if v.Record.Name == self || len(list) == mostClaimants {
			continue
		}
		h := claim.Heard{Member: v.Record.Name, At: v.Record.Issued}
		for _, m := range v.Record.Measured {
			if slices.Contains(about, m.Waypoint) {
				h.Claims = append(h.Claims, claim.Claim{Waypoint: m.Waypoint, Loss: claim.LossClass(m.Loss), Goodput: claim.GoodputClass(m.Goodput)})
			}
		}
		if len(h.Claims) > 0 {
			list = append(list, h)
		}
	}
	return list
}
