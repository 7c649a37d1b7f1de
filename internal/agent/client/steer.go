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

// describeSteering returns the operator's choice, and a warning if it leaves no waypoint that works.
func (c *Client) describeSteering(waypoints []api.Waypoint) api.Steering {
	out := c.steering.describe()
	out.Warning = c.steering.warning(waypoints)
	return out
}

// warning returns a warning if only some waypoints may be taken and none of these has a session. It says what to do. Otherwise it
// is empty.
func (s *steering) warning(waypoints []api.Waypoint) string {
	if !s.only || len(s.use) == 0 {
		return ""
	}
	var down, tunnels []string
	until := "it is back"
	for _, name := range s.use {
		state := "not connected"
		for i := range waypoints {
			w := &waypoints[i]
			switch _, avoided := s.avoid[name]; {
			case w.Name != name:
			case avoided:
				state = "avoided"
			case w.State == api.WaypointUp || w.State == api.WaypointMoving:
				return ""
			default:
				state = string(w.State)
				tunnels = append(tunnels, readyKinds(w)...)
			}
		}
		if state == "not connected" {
			until = "it is"
		}
		down = append(down, name+" is "+state)
	}
	if len(down) > 1 {
		until = "one of them is back"
	}
	paths := "their direct path"
	if len(tunnels) > 0 { // a tunnel can go on without a session, but the waypoint may be gone
		slices.Sort(tunnels)
		paths = "their direct path, and " + strings.Join(slices.Compact(tunnels), " and ") + " if that still works,"
	}
	undo := "`dcol use --reset` undoes this"
	if s.settings.UseOnly && slices.Equal(s.use, s.settings.Use) {
		undo = "`dcol config set client.use_only false`, then `dcol reload`, allows others"
	}
	return fmt.Sprintf("%s: connections have only %s until %s; %s", strings.Join(down, ", "), paths, until, undo)
}

// readyKinds returns the kinds of detours through a waypoint that are ready.
func readyKinds(w *api.Waypoint) (kinds []string) {
	for _, k := range w.Kinds {
		if k.State == api.KindReady {
			kinds = append(kinds, k.Kind)
		}
	}
	return kinds
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
		return c.describeSteering(c.describeWaypoints(nil, c.manager.Snapshot(now).Detours)), nil
	})
}

// Chosen returns the waypoints that are taken first or avoided now.
func (c *Client) Chosen(ctx context.Context) ([]string, error) {
	return call(ctx, c.inbox, func(time.Time) ([]string, error) {
		will := c.steering.will()
		return slices.Concat(will.Use, will.Avoid), nil
	})
}

// Spare makes the connection that a program is about to open from an address get no detours.
func (c *Client) Spare(ctx context.Context, r api.SpareRequest) (api.Spared, error) {
	return call(ctx, c.inbox, func(now time.Time) (api.Spared, error) {
		c.handle(ctx, now, path.Spare{Local: r.Local})
		return api.Spared{}, nil
	})
}
