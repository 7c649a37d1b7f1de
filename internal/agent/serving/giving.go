package serving

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// given returns the operator's limits, and the used part of the quota.
func (s *Serving) given(snap *waypoint.Snapshot) api.Given {
	operator, now := s.terms.Load(), snap.Giving
	out := api.Given{
		Open: !now.Closed(), Until: now.Until, Hours: windows(operator.Hours), UsedBytes: now.Used, QuotaBytes: now.Quota,
		Allow: append([]netip.Prefix{}, operator.Allow...), Deny: append([]netip.Prefix{}, operator.Deny...),
		DenyPorts: append([]int{}, operator.DenyPorts...),
		Bandwidth: int64(operator.Bandwidth), BandwidthPerMember: int64(operator.BandwidthPerMember),
	}
	if now.Closed() {
		out.Closed = api.ClosedCause(now.Cause.String())
	}
	if now.Quota > 0 {
		out.Renews = now.Renews
	}
	for i := range snap.Limited {
		out.Members = append(out.Members, givenTo(&snap.Limited[i]))
	}
	return out
}

func windows(hours []units.Window) []string {
	words := []string{}
	for _, w := range hours {
		words = append(words, w.String())
	}
	return words
}

// givenTo returns what a member with terms of its own may use.
func givenTo(m *waypoint.LimitedSnapshot) api.GivenMember {
	out := api.GivenMember{
		Member: m.Name, Open: !m.Standing.Closed(), Until: m.Standing.Until, Only: append([]netip.Prefix{}, m.Servers.Only...),
		Deny: append([]netip.Prefix{}, m.Servers.Deny...), Ports: append([]uint16{}, m.Servers.Ports...), Hours: windows(m.Hours), QuotaBytes: m.Quota,
	}
	if m.Standing.Closed() {
		out.Closed = api.ClosedCause(m.Standing.Cause.String())
	}
	if m.Quota > 0 {
		out.UsedBytes = m.Used
	}
	return out
}

// Switch switches the waypoint on or off, and returns its new limits and state.
func (s *Serving) Switch(r api.SwitchRequest, now time.Time) (api.Given, error) {
	if err := s.switchTo(r, now); err != nil {
		return api.Given{}, err
	}
	snap, err := s.handler.way.Snapshot()
	if err != nil {
		return api.Given{}, err
	}
	return s.given(&snap), nil
}

// longestOff is the longest time that messages to members can express.
const longestOff = 365 * 24 * time.Hour

func (s *Serving) switchTo(r api.SwitchRequest, now time.Time) error {
	length := time.Duration(r.OffSeconds * float64(time.Second))
	switch {
	case r.On:
		return s.handler.way.SwitchOn()
	case r.OffSeconds == 0:
		return s.handler.way.SwitchOff(time.Time{})
	case r.OffSeconds < 0 || length < time.Second || length > longestOff:
		return fmt.Errorf("off for %v s: the time must be from a second to a year; without one, the waypoint stays off until dcol waypoint on", r.OffSeconds)
	}
	return s.handler.way.SwitchOff(now.Add(length))
}
