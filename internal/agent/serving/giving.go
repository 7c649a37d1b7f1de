package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// given says what the operator gives, and what of it is used.
func (s *serving) given(now waypoint.GivingStatus) api.Given {
	out := api.Given{
		Open: !now.Closed(), Until: now.Until, Hours: []string{}, UsedBytes: now.Used, QuotaBytes: now.Quota,
		Allow: append([]netip.Prefix{}, s.config.Allow...), Deny: append([]netip.Prefix{}, s.config.Deny...),
		DenyPorts: append([]int{}, s.config.DenyPorts...),
		Bandwidth: int64(s.config.Bandwidth), BandwidthPerMember: int64(s.config.BandwidthPerMember),
	}
	if now.Closed() {
		out.Closed = api.ClosedCause(now.Cause.String())
	}
	if now.Quota > 0 {
		out.Renews = now.Renews
	}
	for _, w := range s.config.Hours {
		out.Hours = append(out.Hours, w.String())
	}
	return out
}

// SwitchWaypoint implements api.Agent.
func (a *running) SwitchWaypoint(_ context.Context, r api.SwitchRequest) (api.Given, error) {
	if a.serving == nil {
		return api.Given{}, errors.New(`this member is no waypoint: add "waypoint" to roles in its configuration`)
	}
	if err := a.serving.switchTo(r, time.Now()); err != nil {
		return api.Given{}, err
	}
	snap, err := a.serving.way.Snapshot()
	if err != nil {
		return api.Given{}, err
	}
	return a.serving.given(snap.Giving), nil
}

// longestOff is as long as messages to members can say.
const longestOff = 365 * 24 * time.Hour

func (s *serving) switchTo(r api.SwitchRequest, now time.Time) error {
	length := time.Duration(r.OffSeconds * float64(time.Second))
	switch {
	case r.On:
		return s.way.SwitchOn()
	case r.OffSeconds == 0:
		return s.way.SwitchOff(time.Time{})
	case r.OffSeconds < 0 || length < time.Second || length > longestOff:
		return fmt.Errorf("for %v s: that is not from a second to a year; without a length it is off until it is switched on", r.OffSeconds)
	}
	return s.way.SwitchOff(now.Add(length))
}
