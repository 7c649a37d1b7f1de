package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/agent/client"
	"github.com/detour-collective/dcol/internal/agent/member"
	"github.com/detour-collective/dcol/internal/agent/probing"
	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/agent/routing"
	"github.com/detour-collective/dcol/internal/agent/serving"
	"github.com/detour-collective/dcol/internal/agent/transport"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/coordinator"
	"github.com/detour-collective/dcol/internal/history"
	"github.com/detour-collective/dcol/internal/tomlfile"
)

// running answers the requests at the agent's socket.
type running struct {
	plan        *Plan
	since       time.Time
	coordinator *coordinator.Coordinator         // nil: this host does not have the role
	member      *member.Member                   // nil: it has joined no collective
	client      *client.Client                   // nil: it does not have the role
	serving     *atomic.Pointer[serving.Serving] // its value is nil while the role is not up
	relaying    *relaying.Keeper
	routing     *routing.Routing // nil: this host does not have the role
	transport   *transport.Transport
	page        *pageKeeper
	history     *history.Recorder // nil: none is kept
	probing     *probing.Keeper   // nil: it is not allowed
	roles       []*role           // those that may wait for a port

	reloading sync.Mutex
	settings  *config.Config // in effect; guarded by reloading
}

// Status implements api.Agent.
func (a *running) Status(ctx context.Context) (api.Status, error) {
	s := api.Status{
		Schema: api.StatusSchema, Member: a.plan.config.Name, Version: a.plan.version,
		Since: a.since, Problems: []string{},
	}
	for _, r := range a.plan.config.Roles {
		s.Roles = append(s.Roles, string(r))
	}
	if err := a.plan.identity.Problem(); err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	for _, err := range damagedRecords(a.plan.config) {
		s.Problems = append(s.Problems, err.Error())
	}
	for _, r := range a.roles {
		if taken := r.waiting(); taken != nil {
			s.TakenPorts, s.Problems = append(s.TakenPorts, *taken), append(s.Problems, taken.Problem())
		}
	}
	s.Problems = append(s.Problems, a.transport.Problems()...)
	if a.history != nil {
		if problem := a.history.Problem(); problem != "" {
			s.Problems = append(s.Problems, problem)
		}
	}
	err := a.describeRoles(ctx, &s)
	return s, err
}

// activity returns the part of the status that the history observes.
func (a *running) activity(ctx context.Context) (s api.Status, err error) {
	s.Since = a.since
	if a.client != nil {
		s.Client, err = a.client.Activity(ctx)
	}
	return s, err
}

// describeRoles adds the status of the roles that are up.
func (a *running) describeRoles(ctx context.Context, s *api.Status) (err error) {
	var problems []string
	if a.client != nil {
		if s.Client, problems, err = a.client.Status(ctx); err != nil {
			return err
		}
		s.Problems = append(s.Problems, problems...)
		if choice := &s.Client.Steering; len(choice.Use)+len(choice.Avoid) > 0 {
			known, err := a.waypoints(ctx)
			if err != nil {
				return err
			}
			compareChoice(choice, known)
		}
	}
	if serving := a.serving.Load(); serving != nil {
		if s.Serving, problems, err = serving.Status(); err != nil {
			return err
		}
		s.Problems = append(s.Problems, problems...)
	}
	s.Relay, problems = describeRelay(a.relaying.Standing())
	s.Problems = append(s.Problems, problems...)
	if a.routing != nil {
		if s.Router, problems, err = a.routing.Status(); err != nil {
			return err
		}
		s.Problems = append(s.Problems, problems...)
	}
	if a.coordinator != nil {
		s.Coordinator, problems = describeCoordinator(a.coordinator.Status())
		s.Problems = append(s.Problems, problems...)
	}
	if a.member != nil {
		if s.Collective, problems, err = a.member.Status(ctx); err != nil {
			return err
		}
		s.Problems = append(s.Problems, problems...)
	}
	return nil
}

// Map implements api.Agent.
func (a *running) Map(ctx context.Context, r api.MapRequest) (api.MapAnswer, error) {
	if a.client == nil {
		return api.MapAnswer{}, errNoClient
	}
	return a.client.Map(ctx, r)
}

// SwitchWaypoint implements api.Agent.
func (a *running) SwitchWaypoint(_ context.Context, r api.SwitchRequest) (api.Given, error) {
	if serving := a.serving.Load(); serving != nil {
		return serving.Switch(r, time.Now())
	}
	for _, role := range a.roles {
		if taken := role.waiting(); role.name == config.RoleWaypoint && taken != nil {
			return api.Given{}, errors.New(taken.Problem())
		}
	}
	return api.Given{}, errors.New(`this member is not a waypoint: to make it one, add "waypoint" to roles in its configuration`)
}

// Convert implements api.Agent.
func (a *running) Convert(ctx context.Context, r api.ConvertRequest) (api.Converting, error) {
	if a.client == nil {
		return api.Converting{}, errNoClient
	}
	a.reloading.Lock()
	defer a.reloading.Unlock()
	if err := a.client.Convert(ctx, config.UseConverter(r.Use)); err != nil {
		return api.Converting{}, err
	}
	settings := *a.settings
	settings.Client.Converter.Use = config.UseConverter(r.Use)
	a.settings = &settings
	now, err := a.client.Converting(ctx)
	// The user may rely on never, and the status would only say that converters are not used.
	if failed := a.relaying.Standing().Err; err == nil && settings.Client.Converter.Use == config.ConvertNever && failed != nil {
		err = fmt.Errorf("the choice is changed, but the relay does not follow, and may go on as before (%w): end it with dcol down, as root", failed)
	}
	return now, err
}

// History implements api.Agent.
func (a *running) History(_ context.Context, r api.HistoryRequest) (api.History, error) {
	if a.history == nil {
		return api.History{}, errors.New("no history is kept: set [history] keep = true and restart the agent")
	}
	return a.history.History(r, time.Now())
}

// Why implements api.Agent.
func (a *running) Why(ctx context.Context, r api.WhyRequest) (api.Why, error) {
	if a.client == nil {
		return api.Why{}, errNoClient
	}
	answer, err := a.client.Why(ctx, r)
	if err == nil && a.probing != nil {
		answer.Probed = a.probing.Known(answer.Server.Addr())
	}
	return answer, err
}

// Spare implements api.Agent.
func (a *running) Spare(ctx context.Context, r api.SpareRequest) (api.Spared, error) {
	if a.client == nil {
		return api.Spared{}, errNoClient
	}
	return a.client.Spare(ctx, r)
}

// Steer implements api.Agent. A name must be that of a waypoint, so that a typing error is noticed. A choice may outlive its
// waypoint, so what is chosen may be reset even if this host no longer knows it.
func (a *running) Steer(ctx context.Context, r api.SteerRequest) (api.Steering, error) {
	if a.client == nil {
		return api.Steering{}, errNoClient
	}
	known, err := a.waypoints(ctx)
	if err != nil {
		return api.Steering{}, err
	}
	var chosen []string
	if r.Word == api.SteerReset {
		if chosen, err = a.client.Chosen(ctx); err != nil {
			return api.Steering{}, err
		}
	}
	if r.Waypoints, err = steered(r, a.plan.config.Name, known, chosen); err != nil {
		return api.Steering{}, err
	}
	steering, err := a.client.Steer(ctx, r)
	compareChoice(&steering, known)
	return steering, err
}

// compareChoice compares a choice with the waypoints that this host knows. It marks those that the host does not know, and
// warns if all others are avoided.
func compareChoice(s *api.Steering, known []string) {
	for _, list := range [][]api.Steered{s.Use, s.Avoid} {
		for i := range list {
			list[i].Unknown = !slices.Contains(known, list[i].Name)
		}
	}
	isAvoided := func(name string) bool {
		return slices.ContainsFunc(s.Avoid, func(w api.Steered) bool { return w.Name == name })
	}
	if len(known) > 0 && !slices.ContainsFunc(known, func(name string) bool { return !isAvoided(name) }) {
		s.Warning = "all waypoints are avoided: connections have only their direct path; `dcol use NAME` takes one again"
	}
}

// steered returns the waypoints of a request, each once. A reset may also name waypoints that are in chosen. It returns an error
// for any other name, for this host itself, and if another request names none.
func steered(r api.SteerRequest, self string, known, chosen []string) (list []string, err error) {
	if len(r.Waypoints) == 0 && r.Word != api.SteerReset {
		return nil, fmt.Errorf("no waypoint is named; this host knows %s", cmp.Or(strings.Join(known, ", "), "none yet"))
	}
	for _, name := range r.Waypoints {
		switch lower := strings.ToLower(name); {
		case name == self:
			return nil, fmt.Errorf("%s is this host itself: name other members", name)
		case slices.Contains(known, name) || slices.Contains(chosen, name):
			if !slices.Contains(list, name) {
				list = append(list, name)
			}
		case r.Word == api.SteerReset:
			return nil, fmt.Errorf("%q is neither preferred nor avoided, and not a waypoint that this host knows%s", name,
				cmp.Or(tomlfile.Suggestion(lower, slices.Concat(chosen, known)), "; `dcol use` shows which are preferred or avoided"))
		case len(known) == 0:
			return nil, fmt.Errorf("%q is not a waypoint that this host knows: it knows none yet", name)
		default:
			return nil, fmt.Errorf("%q is not a waypoint that this host knows%s", name, tomlfile.Nearest(lower, known))
		}
	}
	return list, nil
}

// waypoints returns the names of the waypoints that this host knows: its configuration's and the directory's.
func (a *running) waypoints(ctx context.Context) (names []string, err error) {
	for _, w := range a.inEffect().Client.Waypoints {
		names = append(names, w.Name)
	}
	if a.member != nil {
		err = a.member.Directory(ctx, func(d *directory.Directory) {
			for v := range d.All() {
				if v.Record.IsWaypoint() && v.Record.Name != a.plan.config.Name {
					names = append(names, v.Record.Name)
				}
			}
		})
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// Transport implements api.Agent.
func (a *running) Transport(context.Context) (api.Transport, error) { return a.transport.Status() }

// UseCongestion implements api.Agent.
func (a *running) UseCongestion(_ context.Context, r api.CongestionRequest) (api.Transport, error) {
	return a.transport.Use(r)
}

// describeRelay returns the relay's part of the status, and its problems.
func describeRelay(now relaying.Standing) (*api.Relay, []string) {
	var problems []string
	if now.Err != nil {
		problems = append(problems, fmt.Sprintf("connections are not converted: %v", now.Err))
	}
	if now.Relay == nil {
		return nil, problems
	}
	out := &api.Relay{Version: now.Relay.Version, PID: now.Relay.PID, Parts: []api.RelayPart{}}
	for _, name := range slices.Sorted(maps.Keys(now.Relay.Parts)) {
		p := now.Relay.Parts[name]
		out.Parts = append(out.Parts, api.RelayPart{
			Name: name, Listen: p.Listen, Problem: p.Problem, Open: p.Counters.Pairs, Accepted: p.Counters.Accepted,
			Refused: p.Counters.Refused, Bytes: p.Counters.Bytes,
		})
		if p.Problem != "" {
			problems = append(problems, fmt.Sprintf("the relay's part %q does not work: %s: free the address %s, or change it in the configuration", name, p.Problem, p.Listen))
		}
	}
	if why := now.Relay.Capture; why != "" {
		problems = append(problems, fmt.Sprintf("programs' connections are not converted ([client.converter] capture): %s", why))
	}
	return out, problems
}

var errNoClient = errors.New(`this member is no client: add "client" to roles in its configuration`)

var errNotJoined = errors.New("this host has joined no collective: run `dcol join` with an invitation, or `dcol init`")

// Members implements api.Agent.
func (a *running) Members(ctx context.Context) (api.Members, error) {
	if a.member == nil {
		return api.Members{}, errNotJoined
	}
	out, err := a.member.List(ctx)
	if err != nil {
		return api.Members{}, err
	}
	if a.client != nil {
		useConfigured(out.Members, a.plan.config.Client.Waypoints)
	}
	if a.coordinator != nil {
		out.Members = addRegister(out.Members, a.coordinator.Members())
	}
	slices.SortFunc(out.Members, func(a, b api.Member) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// useConfigured marks the members that the configuration names as waypoints as used. The directory knows only those that this
// host has chosen itself.
func useConfigured(members []api.Member, configured []config.Peer) {
	for i := range members {
		m := &members[i]
		m.Used = m.Used || slices.ContainsFunc(configured, func(p config.Peer) bool { return p.Name == m.Name })
	}
}
