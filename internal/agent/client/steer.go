package client

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/path"
)

// steering is the operator's choice of waypoints: the configuration's, changed by requests of `dcol use` and `dcol avoid`.
type steering struct {
	settings config.Client
	requests []request // those in effect, the newest last
}

// request is a request to use or to avoid waypoints. While it is in effect, it replaces older requests about the same waypoints,
// and a request to use waypoints replaces all older ones to use some. What it replaces returns if it lasts longer.
type request struct {
	word      string // api.SteerUse or api.SteerAvoid
	waypoints []string
	only      bool
	until     time.Time // zero: it has no end
}

func newSteering(settings config.Client) steering { return steering{settings: settings} }

// change carries out a request, or returns an error and changes nothing.
func (s *steering) change(asked api.SteerRequest, now time.Time) error {
	r := request{word: asked.Word, waypoints: slices.Clone(asked.Waypoints), only: asked.Only}
	if asked.ForSeconds > 0 && asked.Word != api.SteerReset {
		r.until = now.Add(time.Duration(asked.ForSeconds * float64(time.Second)))
	}
	next := *s
	next.expire(now)
	switch {
	case r.word == api.SteerUse || r.word == api.SteerAvoid:
		next.requests = append(r.replace(next.requests), r)
	case r.word != api.SteerReset:
		return fmt.Errorf("%q is not %s, %s or %s", r.word, api.SteerUse, api.SteerAvoid, api.SteerReset)
	case len(r.waypoints) > 0:
		next.requests = r.replace(next.requests)
	default:
		next.requests = nil
	}
	if err := next.check(); err != nil {
		return err
	}
	*s = next
	return nil
}

// replace returns what is left of older requests. Those that last longer than r stay whole.
func (r *request) replace(older []request) (left []request) {
	for _, old := range older {
		longer := !r.until.IsZero() && (old.until.IsZero() || old.until.After(r.until))
		switch {
		case longer:
		case r.word == api.SteerAvoid && old.word == api.SteerUse: // will leaves out the avoided ones; only stays in effect
		case r.word == api.SteerUse && old.word == api.SteerUse:
			continue
		default:
			old.waypoints = without(old.waypoints, r.waypoints)
		}
		if len(old.waypoints) > 0 {
			left = append(left, old)
		}
	}
	return left
}

// without returns the names that are not in others.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
}

// check returns an error if at some time all waypoints that alone may be taken are avoided. It does not allow others instead,
// because the operator may trust only these.
func (s *steering) check() error {
	for at, then := range s.course() {
		if will := then.will(); !will.Only || len(will.Use) > 0 {
			continue
		}
		when, why := "", "client.use_only is true and all in client.use would be avoided"
		if !at.IsZero() {
			when = " when an earlier choice ends"
		}
		if slices.ContainsFunc(then.requests, func(r request) bool { return r.only }) {
			why = "all that dcol use --only allows would be avoided"
		}
		return fmt.Errorf("no waypoint would be left%s, because %s: allow others with dcol use, or undo all choices with dcol use --reset", when, why)
	}
	return nil
}

// course yields the choice at present, with the zero time, and then the choice after each time at which requests end.
func (s *steering) course() iter.Seq2[time.Time, *steering] {
	return func(yield func(time.Time, *steering) bool) {
		then, at := *s, time.Time{}
		for yield(at, &then) {
			if at = then.next(); at.IsZero() {
				return
			}
			then.expire(at)
		}
	}
}

// expire drops requests whose time is over. It reports whether there were any.
func (s *steering) expire(now time.Time) bool {
	before := s.requests
	s.requests = slices.DeleteFunc(slices.Clone(before), func(r request) bool { return !r.until.IsZero() && !now.Before(r.until) })
	return len(s.requests) < len(before)
}

// next returns when expire has something to do, or zero.
func (s *steering) next() (next time.Time) {
	for _, r := range s.requests {
		if !r.until.IsZero() && (next.IsZero() || r.until.Before(next)) {
			next = r.until
		}
	}
	return next
}

// will returns what the configuration and the requests amount to. The newest request about a waypoint decides. Among the requests to
// use waypoints, the newest counts that is not avoided entirely. One that excludes all others counts in any case: see check.
func (s *steering) will() (will path.Steering) {
	configured := []request{
		{word: api.SteerUse, waypoints: s.settings.Use, only: s.settings.UseOnly},
		{word: api.SteerAvoid, waypoints: s.settings.Avoid},
	}
	preferred := false
	for _, r := range slices.Backward(slices.Concat(configured, s.requests)) {
		names := without(r.waypoints, slices.Concat(will.Use, will.Avoid))
		switch {
		case r.word == api.SteerAvoid:
			will.Avoid = append(will.Avoid, names...)
		case !preferred && (len(names) > 0 || r.only):
			will.Use, will.Only, preferred = names, r.only, true
		}
	}
	slices.Sort(will.Avoid)
	return will
}

// describe returns the choice, with the time at which each part of it ends.
func (s *steering) describe() api.Steering {
	will := s.will()
	out := api.Steering{Use: []api.Steered{}, Only: will.Only, Avoid: []api.Steered{}}
	for _, name := range will.Use {
		out.Use = append(out.Use, api.Steered{Name: name, Until: s.end(func(then path.Steering) bool {
			return slices.Contains(then.Use, name) && then.Only == will.Only
		})})
	}
	for _, name := range will.Avoid {
		out.Avoid = append(out.Avoid, api.Steered{Name: name, Until: s.end(func(then path.Steering) bool {
			return slices.Contains(then.Avoid, name)
		})})
	}
	return out
}

// end returns the time from which on holds is false for the choice, or zero if it always holds.
func (s *steering) end(holds func(path.Steering) bool) time.Time {
	for at, then := range s.course() {
		if !holds(then.will()) {
			return at
		}
	}
	return time.Time{}
}

// named returns the waypoints that the configuration and the requests name.
func (s *steering) named() []string {
	names := slices.Concat(s.settings.Use, s.settings.Avoid)
	for _, r := range s.requests {
		names = append(names, r.waypoints...)
	}
	return names
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
	will := s.will()
	if !will.Only {
		return ""
	}
	var down, tunnels []string
	until := "it is back"
	for _, name := range will.Use {
		state := "not connected"
		for i := range waypoints {
			w := &waypoints[i]
			switch {
			case w.Name != name:
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
	if s.settings.UseOnly && slices.Equal(will.Use, s.settings.Use) {
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
		will := c.steering.will()
		c.log.Info("waypoints are steered", "use", will.Use, "only", will.Only, "avoid", will.Avoid)
		c.steer(ctx, now)
		return c.describeSteering(c.describeWaypoints(nil, c.manager.Snapshot(now).Detours)), nil
	})
}

// Chosen returns the waypoints that the configuration or a request wants to be taken first or avoided, now or later.
func (c *Client) Chosen(ctx context.Context) ([]string, error) {
	return call(ctx, c.inbox, func(time.Time) ([]string, error) { return c.steering.named(), nil })
}

// Spare makes the connection that a program is about to open from an address get no detours.
func (c *Client) Spare(ctx context.Context, r api.SpareRequest) (api.Spared, error) {
	return call(ctx, c.inbox, func(now time.Time) (api.Spared, error) {
		c.handle(ctx, now, path.Spare{Local: r.Local})
		return api.Spared{}, nil
	})
}
