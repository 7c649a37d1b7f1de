package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

// steering is the operator's choice of waypoints: the configuration's, changed by `dcol use` and `dcol
// avoid`.
type steering struct {
	settings config.Client
	use      []string
	only     bool
	useUntil time.Time            // then the settings count again; zero: it has no end
	avoid    map[string]time.Time // until when; zero: it has no end
}

func newSteering(settings config.Client) steering {
	s := steering{settings: settings, avoid: make(map[string]time.Time)}
	s.reset()
	return s
}

// reset returns to the settings.
func (s *steering) reset() {
	s.resetUse()
	clear(s.avoid)
	for _, name := range s.settings.Avoid {
		s.avoid[name] = time.Time{}
	}
}

// release makes these waypoints follow the settings again, or all if there are none.
func (s *steering) release(waypoints []string) {
	if len(waypoints) == 0 {
		s.reset()
		return
	}
	for _, name := range waypoints {
		s.resetAvoid(name)
	}
	s.unuse(func(name string) bool {
		return slices.Contains(waypoints, name) && !slices.Contains(s.settings.Use, name)
	})
}

// resetAvoid avoids a waypoint if the settings do.
func (s *steering) resetAvoid(name string) {
	delete(s.avoid, name)
	if slices.Contains(s.settings.Avoid, name) {
		s.avoid[name] = time.Time{}
	}
}

// unuse ends the preference for some waypoints. Without any preferred one, the others may be taken.
func (s *steering) unuse(which func(name string) bool) {
	s.use = slices.DeleteFunc(s.use, which)
	s.only = s.only && len(s.use) > 0
}

func (s *steering) resetUse() {
	s.use, s.only, s.useUntil = slices.Clone(s.settings.Use), s.settings.UseOnly, time.Time{}
}

// change carries out a request. It replaces earlier requests about the same waypoints.
func (s *steering) change(r api.SteerRequest, now time.Time) error {
	var until time.Time
	if r.ForSeconds > 0 {
		until = now.Add(time.Duration(r.ForSeconds * float64(time.Second)))
	}
	switch r.Word {
	case api.SteerUse:
		s.use, s.only, s.useUntil = slices.Clone(r.Waypoints), r.Only, until
		for _, name := range r.Waypoints {
			delete(s.avoid, name)
		}
	case api.SteerAvoid:
		for _, name := range r.Waypoints {
			s.avoid[name] = until
		}
		s.unuse(func(name string) bool { return slices.Contains(r.Waypoints, name) })
	case api.SteerReset:
		s.release(r.Waypoints)
	default:
		return fmt.Errorf("%q is not %s, %s or %s", r.Word, api.SteerUse, api.SteerAvoid, api.SteerReset)
	}
	return nil
}

// expire drops requests whose time is over. It reports whether there were any.
func (s *steering) expire(now time.Time) (found bool) {
	over := func(until time.Time) bool { return !until.IsZero() && !now.Before(until) }
	if over(s.useUntil) {
		s.resetUse()
		found = true
	}
	for name, until := range s.avoid {
		if over(until) {
			s.resetAvoid(name)
			found = true
		}
	}
	return found
}

// next returns when expire has something to do, or zero.
func (s *steering) next() (next time.Time) {
	next = s.useUntil
	for _, until := range s.avoid {
		if !until.IsZero() && (next.IsZero() || until.Before(next)) {
			next = until
		}
	}
	return next
}

func (s *steering) will() path.Steering {
	return path.Steering{Use: slices.Clone(s.use), Only: s.only, Avoid: slices.Sorted(maps.Keys(s.avoid))}
}

func (s *steering) describe() api.Steering {
	out := api.Steering{Use: []api.Steered{}, Only: s.only, Avoid: []api.Steered{}}
	for _, name := range s.use {
		out.Use = append(out.Use, api.Steered{Name: name, Until: s.useUntil})
	}
	for _, name := range slices.Sorted(maps.Keys(s.avoid)) {
		out.Avoid = append(out.Avoid, api.Steered{Name: name, Until: s.avoid[name]})
	}
	return out
}

// warning says that no waypoint that may be taken works, and what to do. It is empty if one does, or if all may be taken.
// states has the waypoints in use: a waypoint that works is up.
func (s *steering) warning(states map[string]api.WaypointState) string {
	if !s.only || len(s.use) == 0 {
		return ""
	}
	const consequence = ": connections have only their direct path until "
	undo := "; dcol use --reset undoes this"
	if s.settings.UseOnly && slices.Equal(s.use, s.settings.Use) {
		undo = "; dcol config set client.use_only false, then dcol reload, allows others"
	}
	var down []string
	until := "it is back"
	for _, name := range s.use {
		switch state, used := states[name]; {
		case state == api.WaypointUp:
			return ""
		case used:
			down = append(down, name+" is "+string(state))
		default:
			down = append(down, name+" is not connected")
			until = "it is"
		}
	}
	if len(down) > 1 {
		until = "one of them works"
	}
	return strings.Join(down, ", ") + consequence + until + undo
}

// describeSteering returns the operator's choice, and a warning if it leaves no waypoint that works.
func (c *Client) describeSteering(detours map[standingKey]path.DetourState) api.Steering {
	out := c.steering.describe()
	states, will := make(map[string]api.WaypointState), c.steering.will()
	for v, session := range c.roster.sessions {
		w := c.describeWaypoint(v, session, 0, detours)
		switch {
		case works(&w) && will.Allows(w.Name):
			states[w.Name] = api.WaypointUp
		case states[w.Name] != api.WaypointUp:
			states[w.Name] = w.State
		}
	}
	out.Warning = c.steering.warning(states)
	return out
}

// works reports whether connections may have detours through a waypoint. A tunnel works for a while without a session.
func works(w *api.Waypoint) bool {
	return w.State == api.WaypointUp || w.State == api.WaypointMoving ||
		slices.ContainsFunc(w.Kinds, func(k api.WaypointKind) bool { return k.State == api.KindReady })
}

// steer passes the operator's present choice to all parts.
func (c *Client) steer(ctx context.Context, now time.Time) {
	will := c.steering.will()
	c.converters.will = will
	if c.config.Directory != nil {
		first := slices.Concat(will.Use, c.config.Settings.Client.Converter.IncomingConverters())
		c.config.Directory.Steer(first, will.Avoid)
	}
	c.handle(ctx, now, path.Steered{Steering: will})
	c.tellRelay(now)
}

// Steer changes which waypoints are taken, and returns the new state.
func (c *Client) Steer(ctx context.Context, r api.SteerRequest) (api.Steering, error) {
	return call(ctx, c.inbox, func(now time.Time) (api.Steering, error) {
		if err := c.steering.change(r, now); err != nil {
			return api.Steering{}, err
		}
		c.log.Info("waypoints are steered", "use", c.steering.use, "only", c.steering.only, "avoid", slices.Sorted(maps.Keys(c.steering.avoid)))
		c.steer(ctx, now)
		return c.describeSteering(byStanding(c.manager.Snapshot(now).Detours)), nil
	})
}

// Spare makes the connection that a program is about to open from an address get no detours.
func (c *Client) Spare(ctx context.Context, r api.SpareRequest) (api.Spared, error) {
	return call(ctx, c.inbox, func(now time.Time) (api.Spared, error) {
		c.handle(ctx, now, path.Spare{Local: r.Local})
		return api.Spared{}, nil
	})
}
