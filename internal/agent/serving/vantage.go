package serving

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/vantage"
	"github.com/detour-collective/dcol/internal/trace/wire"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// vantagePoint returns the server that traces for other members, or nil if that is not allowed.
func vantagePoint(c Config, way *waypoint.Waypoint) *vantage.Server {
	allowed := c.Settings.Trace
	if !allowed.VantagePoint {
		return nil
	}
	sockets := wire.NewShared("", false) // members have TCP traced only
	return &vantage.Server{
		Terms: func() vantage.Terms {
			return vantage.Terms{Rate: float64(allowed.Rate), Destinations: allowed.Destinations, Hours: allowed.Hours, Permit: permit(way.Policy())}
		},
		Ledger: &vantage.Ledger{}, Refusals: func() (campaign.Refusals, error) { return campaign.HostRefusals(nil) },
		Open: func(to netip.Addr) (campaign.Network, error) { return sockets.Open(to) },
		Log:  c.Log.With("subsystem", "vantage"),
	}
}

// permit returns the policy of destinations: that of detours, with this host's present addresses. Ports are not restricted.
func permit(policy *egress.Policy, err error) func(netip.Addr) error {
	if err != nil {
		return func(netip.Addr) error {
			return fmt.Errorf("the vantage point does not know what it may probe: %w", err)
		}
	}
	return func(a netip.Addr) error {
		var denied *egress.Denied
		if err := policy.CheckAddress(a); errors.As(err, &denied) {
			return fmt.Errorf("the vantage point does not probe %v: %v", a, denied.Reason)
		}
		return nil
	}
}
