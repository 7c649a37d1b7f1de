package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/membership"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/session"
)

// member is this host's part in a collective that it joined.
type member struct {
	*membership.Membership
	self    string
	own     func() []netip.Addr
	log     *slog.Logger
	choices chan []config.Peer                                                  // out of the directory, the newest only
	offer   *offering                                                           // nil before start
	knock   atomic.Pointer[func(from string, id [12]byte, at []netip.AddrPort)] // nil: we do not
	trusted atomic.Pointer[func()]                                              // is told when other roots or lists come; nil: nobody
}

// newMember makes what the roles are told of; nil if this host joined no collective.
func newMember(p *Plan) *member {
	c := p.config.Collective
	if !c.Joined() {
		return nil
	}
	log := p.log.With("subsystem", "collective")
	m := &member{self: p.config.Name, own: addressesNow(log), log: log, choices: make(chan []config.Peer, 1)}
	chooser := directory.Client{Name: p.config.Name, Region: c.Region}
	var skip []string
	if p.config.Has(config.RoleClient) {
		chooser.Want = c.Waypoints
		for _, k := range p.config.Client.Kinds {
			chooser.Kinds = append(chooser.Kinds, string(k))
		}
		for _, w := range p.config.Client.Waypoints {
			skip = append(skip, w.Name)
		}
	}
	m.Membership = membership.New(membership.Config{
		Identity: p.identity, Dir: p.config.CollectiveDir(), Coordinators: p.coordinators, BusServers: localBus(p.config), LANs: lans(log), Own: m.own,
		Client: chooser, Skip: skip, Choice: m.choose,
		Reach: func(ctx context.Context, name string, at netip.AddrPort, punch bool) error {
			return m.reach(ctx, p.identity, name, at, punch)
		},
		Knock: func(from string, id [12]byte, at []netip.AddrPort) {
			if knock := m.knock.Load(); knock != nil {
				(*knock)(from, id, at)
			}
		},
		Trusted: func() {
			if trusted := m.trusted.Load(); trusted != nil {
				(*trusted)()
			}
		},
		Log: log,
	})
	return m
}

// reach tries to begin a session with a member, as a client does: by hole punching, where that is how it says
// it is reached.
func (m *member) reach(ctx context.Context, id *collective.Identity, name string, at netip.AddrPort, punch bool) error {
	var way func(context.Context, *net.UDPConn, netip.AddrPort) error
	if punch {
		way = m.way(name)
	}
	err := session.Try(ctx, id, name, at, way)
	if cannotTell(err) {
		return fmt.Errorf("%w: %w", membership.ErrCannotTell, err)
	}
	return err
}

// cannotTell: it is this host that could not try. So it is where nobody could be asked to open the way, but not
// where nothing came through.
func cannotTell(err error) bool {
	p, ok := errors.AsType[*session.Problem](err)
	return ok && (p.Code == session.NoRoute || p.Code == session.OwnIdentity || p.Code == session.NoWay && !errors.Is(err, nat.ErrNoAnswer))
}

// choose leaves the choice for the client role to take. Only the newest counts.
func (m *member) choose(choice []membership.Waypoint) {
	peers := make([]config.Peer, len(choice))
	for i, w := range choice {
		peers[i] = config.Peer{Name: w.Name, Addresses: w.Addresses, Port: int(w.Port), Punch: w.Punch}
	}
	select {
	case <-m.choices:
	default:
	}
	m.choices <- peers
}

// start begins to be a member, with what the roles give.
func (m *member) start(ctx context.Context, p *Plan, s *serving, group *errgroup.Group) error {
	var err error
	if m.offer, err = newOffering(p, s, m.Offer); err != nil {
		return err
	}
	if s != nil {
		knock := func(from string, id [12]byte, at []netip.AddrPort) { s.doorman.knock(from, id, at) }
		m.knock.Store(&knock)
		trusted := s.expelling.soon
		m.trusted.Store(&trusted)
	}
	group.Go(func() error { return m.Run(ctx) })
	log := p.log.With("subsystem", "collective")
	group.Go(func() error { return m.offer.run(ctx, log) })
	group.Go(func() error { return followNetwork(ctx, m.NetworkChanged, log) })
	return nil
}

// enforced has coordinators told what this waypoint enforces. A nil member has none.
func (m *member) enforced(t *collective.Trust) {
	if m != nil {
		m.Enforced(t)
	}
}

// parseServers reads what the configuration names at key.
func parseServers(key string, texts []string) (list []enrol.Endpoint, err error) {
	for _, text := range texts {
		e, err := enrol.ParseEndpoint(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		list = append(list, e)
	}
	return list, nil
}

// describe is the collective's part of the status.
func (m *member) describe(ctx context.Context) (*api.Collective, []string, error) {
	s, err := m.State(ctx)
	if err != nil {
		return nil, nil, err
	}
	out := &api.Collective{
		Name: s.Self.Collective, Members: s.Directory.Members, Behind: s.Directory.Behind, Ignored: map[string]uint64{},
		Coordinator: api.CoordinatorLink{Connected: s.Bus.Connected, Server: s.Bus.Server, Since: s.Bus.Since, Heard: s.Bus.Heard},
		Certificate: api.Certificate{Until: s.Self.NotAfter, RenewAt: s.Renewal.Next, Renewed: s.Renewal.Last, Failures: s.Renewal.Failures, Expelled: s.Renewal.Expelled},
		Record:      api.OwnRecord{Addresses: []netip.Addr{}, Reachable: s.Record.Reached, Removed: s.Record.Removed},
		Chosen:      s.Chosen,
	}
	if s.Directory.Behind {
		out.BehindWhy = words(s.Directory.AskErr)
	}
	if !s.Bus.Connected {
		out.Coordinator.Why = words(s.Bus.Err)
	}
	out.Certificate.Why, out.Record.Why = words(s.Renewal.Err), words(s.Record.Err)
	for reason, n := range s.Directory.Refused {
		out.Ignored[string(reason)] = n
	}
	if v := s.Record.Verified; v != nil {
		out.Record.Published, out.Record.Until, out.Record.Addresses = v.Record.Issued, v.Until, append(out.Record.Addresses, v.Record.Addresses...)
		out.Record.Port, out.Record.Punch = v.Record.Port, v.Record.Punch
	}
	if t := s.Record.Tried; t != nil {
		out.Record.Checked = &api.Reach{Yes: t.Yes, Of: t.Of, At: t.At, By: append([]string{}, t.By...), Why: t.Why}
	}
	return out, collectiveProblems(s, time.Now()), nil
}

// collectiveProblems is what a person should see to. That the coordinator is away is none while the
// certificate is good for long.
func collectiveProblems(s membership.State, now time.Time) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if errors.Is(s.Renewal.Err, enrol.ClockWrong) {
		add("%v", s.Renewal.Err)
	}
	if s.Renewal.Expelled != "" {
		add("this host was expelled from the collective (%s): it gets no detours; connections use their direct path. %s", s.Renewal.Expelled, mendExpelled)
	} else if left := s.Self.NotAfter.Sub(now); s.Renewal.Err != nil && left < s.Self.NotAfter.Sub(s.Self.NotBefore)/2 {
		add("the certificate is not renewed, and ends on %s: %v", s.Self.NotAfter.UTC().Format("2006-01-02 15:04 UTC"), s.Renewal.Err)
	}
	if s.Record.Removed != "" && s.Renewal.Expelled == "" {
		add("this host was taken out of the directory: %s", s.Record.Removed)
	}
	if s.Record.Err != nil && s.Bus.Connected {
		add("what this host offers is not known to the others: %v", s.Record.Err)
	}
	if len(s.Record.Withheld) > 0 && s.Bus.Connected {
		add("others are not told that this host is at %v, as nobody who tried got there: let in the sessions' UDP port, or name the addresses that are this host's ([collective] addresses)",
			s.Record.Withheld)
	}
	if s.Record.Reached != nil && !*s.Record.Reached && s.Record.Verified != nil && s.Record.Verified.Record.IsWaypoint() && !s.Record.Verified.Record.Punch {
		r := s.Record.Verified.Record
		add(api.Unreached+" at UDP port %d of %v: open the port, or name its addresses ([collective] addresses)", r.Port, r.Addresses)
	}
	for _, err := range []error{s.Directory.LoadErr, s.Directory.SaveErr, s.Trouble} {
		if err != nil {
			add("%v", err)
		}
	}
	return problems
}

// mendExpelled is what is left to a host that was expelled.
const mendExpelled = "Ask whoever runs the collective; or leave it: stop the agent, dcol down, and remove the configuration"

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

var errNotJoined = errors.New("this host has joined no collective (dcol join): there is no directory of members")

// Members implements api.Agent.
func (a *running) Members(ctx context.Context) (api.Members, error) {
	if a.member == nil {
		return api.Members{}, errNotJoined
	}
	s, err := a.member.State(ctx)
	if err != nil {
		return api.Members{}, err
	}
	out := api.Members{Schema: api.MembersSchema, Collective: s.Self.Collective, Self: s.Self.Name, Behind: s.Directory.Behind, Members: []api.Member{}}
	err = a.member.Directory(ctx, func(d *directory.Directory) {
		for v := range d.All() {
			out.Members = append(out.Members, describeMember(v, s))
		}
	})
	if a.coordinator != nil {
		out.Members = addRegister(out.Members, a.coordinator.Members())
	}
	slices.SortFunc(out.Members, func(a, b api.Member) int { return cmp.Compare(a.Name, b.Name) })
	return out, err
}

func describeMember(v *directory.Verified, s membership.State) api.Member {
	r := &v.Record
	m := api.Member{
		Name: r.Name, Roles: append([]string{}, r.Roles...), Kinds: append([]string{}, r.Kinds...),
		Addresses: append([]netip.Addr{}, r.Addresses...), Port: r.Port, Punch: r.Punch, Region: r.Region, Capacity: r.Capacity, Subnet: v.Holder.Subnet,
		CertificateUntil: v.Holder.NotAfter, RecordIssued: r.Issued, RecordUntil: v.Until, Used: slices.Contains(s.Chosen, r.Name),
	}
	if r.IsWaypoint() {
		m.Reachable = membership.Reached(s.Word, r.Name)
	}
	return m
}
