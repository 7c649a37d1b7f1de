package serving

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/vantage"
	"github.com/detour-collective/dcol/internal/trace/wire"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// vantagePoint returns the function that traces for other members, or nil if that is not allowed.
func vantagePoint(c Config) func(context.Context, session.Peer, session.Stream) {
	allowed := c.Settings.Trace
	if !allowed.VantagePoint {
		return nil
	}
	server := &vantage.Server{
		Terms: func() vantage.Terms {
			return vantage.Terms{Rate: float64(allowed.Rate), Destinations: allowed.Destinations, Hours: allowed.Hours, Permit: permit(c)}
		},
		Ledger: &vantage.Ledger{}, Refusals: func() (campaign.Refusals, error) { return campaign.HostRefusals(nil) },
		Open: func(to netip.Addr) (campaign.Network, error) { return wire.OpenOnly(to, "") },
		Log:  c.Log.With("subsystem", "vantage"),
	}
	return func(ctx context.Context, p session.Peer, s session.Stream) { server.Serve(ctx, p.Name, s) }
}

// permit returns the policy of destinations: that of detours, around this host's present addresses.
func permit(c Config) func(netip.Addr) error {
	const anyPort = 80 // ports are not restricted
	policy, err := egress.New(c.Settings.Waypoint.Allow, c.Settings.Waypoint.Deny, nil)
	var here egress.Surroundings
	if err == nil {
		here, err = surroundings()
	}
	if err != nil {
		return func(netip.Addr) error { return fmt.Errorf("its addresses are not known: %w", err) }
	}
	policy = policy.Around(here)
	return func(a netip.Addr) error {
		var denied *egress.Denied
		if err := policy.Check(netip.AddrPortFrom(a, anyPort)); errors.As(err, &denied) {
			return fmt.Errorf("the vantage point does not probe %v: %v", a, denied.Reason)
		}
		return nil
	}
}

// surroundings returns this host's addresses and the networks that it is in.
func surroundings() (here egress.Surroundings, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return here, err
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			here.Own = append(here.Own, p.Addr().Unmap())
			here.OnLink = append(here.OnLink, p.Masked())
		}
	}
	return here, nil
}
