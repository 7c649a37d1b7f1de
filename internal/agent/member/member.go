// Package member is this host's part in the collective that it joined. It runs the membership, passes the chosen
// waypoints to the client role, and punches holes to waypoints behind NATs.
package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/membership"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/nat/stun"
	"github.com/detour-collective/dcol/internal/session"
)

// Member is this host's part in the collective that it joined.
type Member struct {
	*membership.Membership
	self    string
	own     func() []netip.Addr
	log     *slog.Logger
	choices chan []config.Peer
	knocks  chan Knock
	trusted chan struct{}
}

// Knock asks this host to send packets to the external addresses of another member, so that its NAT lets that member in.
type Knock struct {
	From string
	ID   stun.ID
	At   []netip.AddrPort
}

// knockRoom is the number of knocks that may wait for the waypoint role.
const knockRoom = 32

// Config configures a Member; see New.
type Config struct {
	Identity     *collective.Identity
	Settings     *config.Config
	Coordinators []enrol.Endpoint
	Log          *slog.Logger
}

// New returns a Member, which does nothing before Run.
func New(c Config) *Member {
	log, settings := c.Log.With("subsystem", "collective"), c.Settings
	m := &Member{
		self: settings.Name, own: addressesNow(log), log: log,
		choices: make(chan []config.Peer, 1), knocks: make(chan Knock, knockRoom), trusted: make(chan struct{}, 1),
	}
	chooser := directory.Client{
		Name: settings.Name, Region: settings.Collective.Region, First: settings.Client.Use, Never: settings.Client.Avoid,
	}
	chooser.First = slices.Concat(chooser.First, settings.Client.Converter.IncomingConverters())
	var skip []string
	if settings.Has(config.RoleClient) {
		chooser.Want = settings.Collective.Waypoints
		for _, k := range settings.Client.Kinds {
			chooser.Kinds = append(chooser.Kinds, string(k))
		}
		if settings.Client.Converter.Use != config.ConvertNever {
			chooser.Converter = string(config.Converter)
		}
		for _, w := range settings.Client.Waypoints {
			skip = append(skip, w.Name)
		}
	}
	m.Membership = membership.New(membership.Config{
		Identity: c.Identity, Dir: settings.CollectiveDir(), Coordinators: c.Coordinators, BusServers: localBus(settings), LANs: lans(log), Own: m.own,
		Client: chooser, Skip: skip, Choice: m.choose,
		Reach: func(ctx context.Context, name string, at netip.AddrPort, punch bool) error {
			return m.reach(ctx, c.Identity, name, at, punch)
		},
		Knock: m.knock, Trusted: func() { notify(m.trusted) }, Log: log,
	})
	return m
}

// BasicOffer returns the record's content for a host with these roles. It lacks the kinds of detours that the host offers.
func BasicOffer(settings *config.Config, roles []config.Role) membership.Offer {
	offer := membership.Offer{Region: settings.Collective.Region}
	for _, r := range roles {
		offer.Roles = append(offer.Roles, string(r))
	}
	return offer
}

// Run keeps this host a member until ctx ends.
func (m *Member) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.Membership.Run(ctx) })
	group.Go(func() error { return followNetwork(ctx, m.NetworkChanged, m.log) })
	return group.Wait()
}

// Choices delivers the waypoints to use, after each change. It keeps only the newest choice. There may be one reader.
func (m *Member) Choices() <-chan []config.Peer { return m.choices }

// Knocks delivers the requests for hole punching to the waypoint role. There may be one reader.
func (m *Member) Knocks() <-chan Knock { return m.knocks }

// TrustChanged delivers a value when roots or lists have changed. There may be one reader.
func (m *Member) TrustChanged() <-chan struct{} { return m.trusted }

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has not been looked at yet
	}
}

func (m *Member) knock(from string, id [12]byte, at []netip.AddrPort) {
	select {
	case m.knocks <- Knock{from, id, at}:
	default:
		m.log.Warn("too many members request hole punching at the same time", "member", from)
	}
}

// reach tries to begin a session with a member, as a client does. It punches a hole first if the member's record asks
// for that.
func (m *Member) reach(ctx context.Context, id *collective.Identity, name string, at netip.AddrPort, punch bool) error {
	var way func(context.Context, *net.UDPConn, netip.AddrPort) error
	if punch {
		way = m.Way(name)
	}
	err := session.Try(ctx, id, name, at, way)
	if isOwnFault(err) {
		return fmt.Errorf("%w: %w", membership.ErrCannotTell, err)
	}
	return err
}

// isOwnFault reports whether a try failed because of this host: it has no route or no usable certificate,
// or could not ask anybody to punch the hole. If it asked, but no packet came through, the fault is
// elsewhere.
func isOwnFault(err error) bool {
	p, ok := errors.AsType[*session.Problem](err)
	return ok && (p.Code == session.NoRoute || p.Code == session.OwnIdentity || p.Code == session.NoWay && !errors.Is(err, nat.ErrNoAnswer))
}

// choose replaces the choice that waits for the client role.
func (m *Member) choose(choice []membership.Waypoint) {
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

// lans returns a function that lists the networks around this host; none if they cannot be listed.
func lans(log *slog.Logger) func() []netip.Prefix {
	return func() []netip.Prefix {
		all, err := enrol.LANs()
		if err != nil {
			log.Warn("the collective may assign this host addresses that a network around it uses", "err", err)
		}
		return all
	}
}

// localBus returns the address of the bus that runs in this host's own agent. The address that members use may not work
// from inside this network.
func localBus(c *config.Config) []enrol.Endpoint {
	if !c.Has(config.RoleCoordinator) || len(c.Coordinator.BusServers) > 0 {
		return nil
	}
	host, port, err := net.SplitHostPort(c.Coordinator.BusListen)
	if err != nil {
		return nil // the configuration was checked
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return []enrol.Endpoint{{Name: c.Name, Address: net.JoinHostPort(host, port)}}
}
