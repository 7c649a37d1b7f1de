package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/detour-collective/dcol/internal/api"
)

// canned is an agent whose status is in a file, and that knows one waypoint. It is a waypoint itself if
// its status says so. If its name is "stuck", it takes long to answer, and fails.
type canned struct {
	api.Agent // what is not asked
	status    api.Status
}

// Members are the two that the collective has; Invite and Expel work if the status says that it is the coordinator.
func (c *canned) Members(context.Context) (api.Members, error) {
	if c.status.Collective == nil {
		return api.Members{}, errors.New("this host has joined no collective")
	}
	return api.Members{Schema: api.MembersSchema, Collective: c.status.Collective.Name, Self: c.status.Member, Members: []api.Member{
		{Name: c.status.Member, Roles: []string{"client"}}, {Name: "bob", Roles: []string{"waypoint"}, Used: true},
	}}, nil
}

func (c *canned) Invite(_ context.Context, r api.InviteRequest) (api.Invitation, error) {
	if c.status.Coordinator == nil {
		return api.Invitation{}, errors.New("this host is not a coordinator")
	}
	return api.Invitation{Line: fmt.Sprintf("dcol1-%s%v", r.Name, r.LifetimeSeconds), Expires: time.Unix(0, 0)}, nil
}

func (c *canned) Expel(_ context.Context, r api.ExpelRequest) (api.Expulsion, error) {
	switch r.Member {
	case "bob":
		return api.Expulsion{Member: "bob", Waypoints: &api.Enforcement{Of: 3, Confirmed: 1, Waiting: []string{"erin"}, Away: []string{"frank"}}}, nil
	case "carol":
		return api.Expulsion{Member: "carol", Pending: "the bus is not up: " + r.Why}, nil
	}
	if r.Member == "dora" {
		time.Sleep(sayAfter + 200*time.Millisecond) // as if her waypoints were slow
		return api.Expulsion{Member: "dora", Waypoints: &api.Enforcement{}}, nil
	}
	return api.Expulsion{}, fmt.Errorf("there is no member %s", r.Member)
}

func (c *canned) Spare(context.Context, api.SpareRequest) (api.Spared, error) {
	return api.Spared{}, nil
}

func (c *canned) LogLevel(_ context.Context, r api.LogLevelRequest) (api.LogLevels, error) {
	if _, wrong := r.Subsystems["sesion"]; wrong {
		return api.LogLevels{}, errors.New(`"sesion" is not a subsystem of this agent: choose one of client, session`)
	}
	out := api.LogLevels{All: "info", Subsystems: map[string]string{"client": "info", "session": "info"}}
	maps.Copy(out.Subsystems, r.Subsystems)
	return out, nil
}

func (c *canned) History(_ context.Context, r api.HistoryRequest) (api.History, error) {
	if r.Step == api.StepMinute {
		time.Sleep(sayAfter + 200*time.Millisecond) // as if the history were long
	}
	p := api.Period{
		Start: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Observed: 3600,
		Paths:  []api.PathUsed{{Kind: "direct", Received: 3e9, Sent: 1e6, RTT: 20}, {Kind: "in-band", Waypoint: "bob", Received: 1e9, Sent: 1e6, RTT: 35}},
		Gained: api.Gained{DetourBytes: 1_001_000_000, Stalls: 2, StallTime: 12, Saved: 95, SavedLow: 80, SavedHigh: 130},
	}
	if c.status.Client == nil { // it has no connections
		p.Paths, p.Gained = nil, api.Gained{}
	}
	return api.History{Schema: api.HistorySchema, Step: r.Step, Periods: []api.Period{p}, Total: p}, nil
}

func (c *canned) Web(_ context.Context, r api.WebRequest) (api.Web, error) {
	if r.Stop {
		return api.Web{}, nil
	}
	return api.Web{URL: "http://127.0.0.1:4711/#code=ABC"}, nil
}

func (c *canned) Reload(context.Context, api.ReloadRequest) (api.Reloaded, error) {
	return api.Reloaded{
		File: "dcol.toml", Applied: []api.SettingChange{{Key: "log_level", From: `"info"`, To: `"debug"`}, {Key: "client.exclude", From: `["10.0.0.0/8"]`, To: "[]", NewOnly: true}},
		Waiting: []api.SettingChange{{Key: "run_dir", From: `"/run/dcol"`, To: `"/run/x"`}},
	}, nil
}

func (c *canned) Steer(_ context.Context, r api.SteerRequest) (api.Steering, error) {
	s := &c.status.Client.Steering
	if r.Word == api.SteerReset && len(r.Waypoints) > 0 {
		follows := func(w api.Steered) bool { return slices.Contains(r.Waypoints, w.Name) && w.Name != "configured" }
		s.Use, s.Avoid = slices.DeleteFunc(s.Use, follows), slices.DeleteFunc(s.Avoid, follows)
		return *s, nil
	}
	if r.Word != api.SteerReset && len(r.Waypoints) == 0 {
		return api.Steering{}, errors.New("no waypoint is named; this host knows bob")
	}
	for _, name := range r.Waypoints {
		if name != "bob" {
			return api.Steering{}, fmt.Errorf("%q is not a waypoint that this host knows; known are: bob", name)
		}
		switch one := (api.Steered{Name: name}); r.Word {
		case api.SteerUse:
			s.Use, s.Only = []api.Steered{one}, r.Only
		case api.SteerAvoid:
			s.Avoid = []api.Steered{one}
		}
	}
	if r.Word == api.SteerReset {
		*s = api.Steering{}
	}
	return *s, nil
}

func (c *canned) Why(_ context.Context, r api.WhyRequest) (api.Why, error) {
	return api.Why{Schema: api.WhySchema, Server: r.Server, Connections: c.status.Client.Connections, Candidates: []api.Candidate{
		{Waypoint: "bob", Kind: "in-band", Taken: true, Wait: 20, Guessed: true, Why: "in-band comes first of what bob offers"},
	}}, nil
}

func (c *canned) SwitchWaypoint(_ context.Context, r api.SwitchRequest) (api.Given, error) {
	if c.status.Serving == nil {
		return api.Given{}, errors.New("this member is not a waypoint")
	}
	given := &c.status.Serving.Given
	given.Open, given.Closed = r.On, ""
	if !r.On {
		given.Closed = api.ClosedCause(fmt.Sprintf("off for %v s", r.OffSeconds))
	}
	return *given, nil
}

func (c *canned) Status(context.Context) (api.Status, error) {
	if c.status.Member == "stuck" {
		time.Sleep(sayAfter + 200*time.Millisecond)
		return api.Status{}, errors.New("the client role does not answer")
	}
	return c.status, nil
}

func (c *canned) Map(_ context.Context, r api.MapRequest) (api.MapAnswer, error) {
	if r.Waypoint != "bob" {
		return api.MapAnswer{}, fmt.Errorf("%q is not one of this client's waypoints", r.Waypoint)
	}
	return api.MapAnswer{Address: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), r.Server.Port()), LeaseSeconds: 600}, nil
}

func serve(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: serve SOCKET STATUS")
	}
	agent := new(canned)
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &agent.status))
	listener, err := api.Listen(ts.MkAbs(args[0]))
	ts.Check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx, listener, agent) }()
	ts.Defer(func() {
		stop()
		ts.Check(<-ended)
	})
}
