package client

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// waypoint is one address of a waypoint, reached over a session.
type waypoint interface {
	// Map asks for a port that leads to server.
	// Sole is set if this host has no other waypoint.
	Map(ctx context.Context, server netip.AddrPort, sole bool) (detour.Grant, error)
	// Refusal translates an error of Map for the book of detours.
	Refusal(error) detour.Refusal
	// Describe returns the session's state.
	Describe() api.Waypoint
	// Measured returns the measurements of the session. They are zero while there is no session.
	Measured() figures
	// Ping measures the round trip again.
	Ping()
	// NetworkChanged is called when this host's addresses have changed.
	NetworkChanged()
}

// waypointSession is a waypoint; its session is QUIC.
type waypointSession struct {
	*session.Client
	name string
	at   netip.AddrPort
}

// Map implements waypoint.
func (s *waypointSession) Map(ctx context.Context, server netip.AddrPort, sole bool) (detour.Grant, error) {
	// The server's own port first: the waypoint changes it if it must.
	g, err := s.Client.Map(ctx, server, server.Port(), sole)
	if err != nil {
		return detour.Grant{}, fmt.Errorf("ask %s for a mapping to %v: %w", s.name, server, err)
	}
	return detour.Grant{Port: g.Port, Lease: g.Lease}, nil
}

// Refusal implements waypoint.
func (s *waypointSession) Refusal(err error) detour.Refusal {
	var r *wire.Refusal
	if !errors.As(err, &r) {
		return detour.Refusal{Why: err.Error(), Unanswered: true}
	}
	whole := r.Code == wire.RateLimited || r.Code == wire.Busy || r.Code == wire.ShuttingDown ||
		r.Code == wire.QuotaMappings || r.Code == wire.NotOffered || r.Code.Closed()
	wait := r.RetryAfter
	if r.Code == wire.Loaded {
		wait = min(wait, loadedAtMost)
	}
	if r.Code.Closed() {
		wait = 0 // the session reports the end, and may have done so already
	}
	return detour.Refusal{Why: r.Error(), For: wait, All: whole, Forbidden: r.Code == wire.DestinationForbidden}
}

// Describe implements waypoint.
func (s *waypointSession) Describe() api.Waypoint {
	state := s.State()
	d := api.Waypoint{
		Name: s.name, Addr: s.at, State: api.WaypointDown, Since: state.Since,
		RTT: milliseconds(state.RTT), Loss: state.Loss, LossPackets: uint64(state.LossPackets),
	}
	switch {
	case state.Usable() && state.Closed != nil:
		d.State, d.Why = api.WaypointClosed, state.Closed.String()
	case state.Usable():
		d.State = api.WaypointUp
		if state.Load.Until.After(time.Now()) {
			d.Why = "loaded until " + state.Load.Until.Local().Format(time.TimeOnly) + ": other waypoints are used first"
		}
	case state.Moving:
		d.State, d.Why = api.WaypointMoving, "this host's address has changed; the session moves"
	case state.Problem != nil:
		d.Why = state.Problem.Error()
	}
	return d
}

// loadedAtMost bounds the time for which a waypoint that refuses a mapping because of its load is not asked for it
// again, even if the waypoint names a longer time.
const loadedAtMost = time.Minute

// figures holds the measurements of a session: its shortest and its latest round trip, the share of its packets that were lost lately, and
// the number of packets from which that share was computed.
type figures struct {
	trip, latest  time.Duration
	loss, packets float64
}

// Measured implements waypoint.
func (s *waypointSession) Measured() figures { return measuredOf(s.State()) }

func measuredOf(s session.State) figures {
	if !s.Usable() {
		return figures{}
	}
	return figures{s.MinRTT, s.LatestRTT, s.Loss, s.LossPackets}
}

// quotaSpent reports whether a waypoint's quota is used up. The waypoint has then ended the connections through it, but
// the kernel of a host that sends nothing is not notified.
func quotaSpent(s session.State) bool { return s.Closed != nil && s.Closed.Code == wire.QuotaTraffic }

// offers returns the kinds of detours that a waypoint gives now. A kind that is newer than this program is left
// out.
func offers(s session.State) []path.Kind {
	if s.Closed != nil {
		return nil
	}
	var out []path.Kind
	for _, k := range s.Offers {
		if known, ok := policy.ParseKind(k.String()); ok {
			out = append(out, known)
		}
	}
	return out
}
