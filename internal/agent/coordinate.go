package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/coordinator"
)

// openCoordinator opens the coordinator's directory. That is done here and not in Prepare, because only one
// process may have it open.
func openCoordinator(p *Plan) (*coordinator.Coordinator, error) {
	c := p.config.Coordinator
	servers, err := parseServers("[coordinator] bus_servers", c.BusServers)
	if err != nil {
		return nil, err
	}
	return coordinator.Open(coordinator.Config{
		Dir: c.Dir, Identity: p.identity, Listen: c.Listen, BusListen: c.BusListen, Addresses: c.Addresses,
		BusServers: servers, Log: p.log.With("subsystem", "coordinator"),
	})
}

// coordinatorRole returns the coordinator role. It listens when it runs.
func coordinatorRole(p *Plan, co *coordinator.Coordinator) *role {
	return &role{
		name: config.RoleCoordinator, log: p.log,
		start: func(context.Context) (func(context.Context) error, error) { return co.Run, nil },
		isUp:  func() bool { return co.Status().Listening != "" },
		end:   co.Close,
	}
}

var errNoCoordinator = errors.New("this host is not a coordinator: run this command on the host where `dcol init` was run")

// Invite implements api.Agent.
func (a *running) Invite(_ context.Context, r api.InviteRequest) (api.Invitation, error) {
	if a.coordinator == nil {
		return api.Invitation{}, errNoCoordinator
	}
	line, err := a.coordinator.Invite(coordinator.InviteOptions{
		Name: r.Name, Expires: time.Duration(r.LifetimeSeconds * float64(time.Second)),
	})
	if err != nil {
		return api.Invitation{}, err
	}
	return api.Invitation{Line: line.String(), Expires: line.Expires}, nil
}

// Expel implements api.Agent.
func (a *running) Expel(ctx context.Context, r api.ExpelRequest) (api.Expulsion, error) {
	if a.coordinator == nil {
		return api.Expulsion{}, errNoCoordinator
	}
	waiting, cancel := context.WithTimeout(ctx, enforcedWithin)
	defer cancel()
	err := a.coordinator.Expel(ctx, r.Member, r.Why)
	out := api.Expulsion{Member: r.Member}
	switch {
	case errors.Is(err, coordinator.ErrNotTold):
		out.Pending, err = err.Error(), nil
	case err == nil:
		e := a.coordinator.Enforcement(waiting)
		out.Waypoints = &api.Enforcement{Of: e.Of, Confirmed: e.Confirmed, Waiting: append([]string{}, e.Waiting...), Away: append([]string{}, e.Away...)}
	}
	return out, err
}

// enforcedWithin is the time after an expulsion within which waypoints must refuse the member.
const enforcedWithin = 5 * time.Second

// addRegister adds a coordinator's knowledge to the members in the directory: members without a record, expelled members,
// and whether others reach them.
func addRegister(members []api.Member, register []coordinator.Member) []api.Member {
	for _, r := range register {
		i := slices.IndexFunc(members, func(m api.Member) bool { return m.Name == r.Name })
		if i < 0 {
			members = append(members, api.Member{Name: r.Name, Roles: []string{}, Kinds: []string{}, Addresses: []netip.Addr{}, Subnet: r.Subnet})
			i = len(members) - 1
		}
		m := &members[i]
		m.Joined, m.CertificateUntil = r.Joined, r.Until
		if r.Reach != nil {
			m.Reach = &api.Reach{Yes: r.Reach.Yes, Of: r.Reach.Of, At: r.Reach.At, By: append([]string{}, r.Reach.By...), Why: r.Reach.Why}
		}
		m.Enforces = r.Enforces
		if r.Expelled != nil {
			m.Expelled, m.Why = r.Expelled.At, r.Expelled.Why
		}
	}
	return members
}

// describeCoordinator returns the coordinator role's part of the status.
func describeCoordinator(s coordinator.Status) (*api.Coordinator, []string) {
	out := &api.Coordinator{
		Listen: s.Listening, Bus: s.Bus, Members: s.Members, Expelled: s.Expelled, Invitations: s.Invitations,
		Unreachable: []string{}, AuthorityUntil: s.Until, Messages: s.Counts.Taken, Refused: s.Counts.Refused, Floods: s.Floods,
	}
	problems := slices.Clone(s.Problems)
	for _, name := range s.Untold {
		problems = append(problems, fmt.Sprintf("not all members could be notified yet that %s is no longer a member; the agent keeps trying", name))
	}
	if s.Directory != nil {
		out.Records, out.Unreachable = s.Directory.Members, append(out.Unreachable, s.Directory.Unreachable...)
	} else {
		problems = append(problems, "the directory's store is not available, so no records are accepted: see the agent's log")
	}
	if left := time.Until(s.Until); left < renewAuthority {
		problems = append(problems, fmt.Sprintf("the certificate of the authority that signs certificates expires on %s: renew it with the root (dcol ca renew)", s.Until.UTC().Format(time.DateOnly)))
	}
	return out, problems
}

// renewAuthority is the time before its end at which a signer should be renewed.
const renewAuthority = 30 * 24 * time.Hour

// adviseCoordinator replaces the advice about a fault in the identity's files by advice for a coordinator, because
// nobody can invite a coordinator.
func adviseCoordinator(c *config.Config, err error) error {
	fault, ok := errors.AsType[*collective.Error](err)
	if !ok || !c.Has(config.RoleCoordinator) || !c.Collective.Joined() {
		return err
	}
	here := *fault
	here.Fix = fmt.Sprintf("put the folder of this file back from its backup: this host is the coordinator, so do not join again; "+
		"the keys of the collective are in %s, and are not affected", c.Coordinator.Dir)
	return &here
}
