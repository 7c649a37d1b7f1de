package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/tunnel"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// standingKey is one kind of tunnel through one address of a waypoint.
type standingKey struct {
	via  detour.Via
	kind path.Kind
}

// tunnels keeps the detours that lead to any server, through whatever waypoint.
type tunnels struct {
	log       *slog.Logger
	names     []string                 // of the interfaces that there may be
	guard     guard                    // nil: not needed yet
	admission map[netip.Addr]admission // to in-band detours, by waypoint address
	standings map[standingKey]tunnel.Standing
	offers    map[detour.Via][]path.Kind // as each session last reported
	offered   map[standingKey]bool       // what was ever on offer at the waypoints in use
	syns      synMarker                  // nil: no in-band detours
	noSyns    error                      // why there are none
	reserved  tunnel.Reserved            // what may go by tunnels only
	keys      tunnelKeys
}

// guard has rules that let only answers come out of tunnels. tunnel.OpenGuard returns one.
type guard interface {
	Check() (restored bool, err error)
	Removed() <-chan struct{}
	Close() error
	// Release leaves the rules as they are.
	Release() error
}

// keeper keeps one tunnel. It is *tunnel.Keeper.
type keeper interface {
	Run(ctx context.Context)
	Poke()
}

// admission has the key by which SYNs to a waypoint are authenticated. It is *tunnel.InBand.
type admission interface{ Auth() *inband.Auth }

// synMarker puts the server's address into chosen SYNs. It is *inband.Sender.
type synMarker interface {
	Expect(inband.Join) error
	Forget(local, remote netip.AddrPort) (unmarked bool)
	Attach(interfaces []int) error
	Timestamps() (bool, error)
	Close() error
}

// newTunnels makes tunnels possible to as many waypoints as there is room for.
func newTunnels(settings *config.Config, room int, interfaces []netstate.Interface, log *slog.Logger) *tunnels {
	t, operator := emptyTunnels(log), settings.Client
	if marks := settings.Waypoint.Marks; operator.Converter.Tunnel != "" {
		t.reserved = tunnel.Reserved{Mask: marks, Mark: tunnelMark(marks)}
	}
	if operator.Uses(config.WireGuard) {
		t.keys = openTunnelKeys(settings.RunDir, log)
	}
	for n := range room {
		for kind, name := range map[config.Kind]string{
			config.WireGuard: tunnel.Interface(path.WireGuard, n), config.OpenVPN: tunnel.Interface(path.OpenVPN, n),
		} {
			if operator.Uses(kind) {
				t.names = append(t.names, name)
			}
		}
	}
	if !operator.Uses(config.InBand) {
		return t
	}
	syns, err := inband.OpenSender(inband.SenderConfig{Cgroup: operator.Cgroup})
	if err != nil {
		t.noSyns = err
		log.Warn("in-band detours are not used", "err", err)
		return t
	}
	t.syns = syns
	t.attach(interfaces)
	return t
}

func emptyTunnels(log *slog.Logger) *tunnels {
	return &tunnels{
		log: log, admission: make(map[netip.Addr]admission), standings: make(map[standingKey]tunnel.Standing),
		offers: make(map[detour.Via][]path.Kind), offered: make(map[standingKey]bool),
	}
}

// problems describes to the user why a kind of detours is not used.
func (t *tunnels) problems() []string {
	if t.noSyns == nil {
		return nil
	}
	return []string{fmt.Sprintf("%s %s: %s", config.InBand, api.NotUsed, inBandProblem(t.noSyns))}
}

// inBandProblem returns in one line what this host lacks for in-band detours, and the fix.
func inBandProblem(err error) string {
	if u, ok := errors.AsType[*inband.UnavailableError](err); ok {
		return fmt.Sprintf("%s (%s)", tunnel.OneLine(u.Err), u.Fix)
	}
	return tunnel.OneLine(err)
}

// attach attaches the program that authenticates SYNs to every interface of the host by which a waypoint
// may be reached.
func (t *tunnels) attach(interfaces []netstate.Interface) {
	if t.syns == nil {
		return
	}
	var outside []int
	for _, i := range interfaces {
		if !i.Loopback && !tunnel.Ours(i.Name) {
			outside = append(outside, i.Index)
		}
	}
	if err := t.syns.Attach(outside); err != nil {
		t.log.Warn("in-band SYNs are not authenticated on some interfaces", "err", err)
	}
}

// forgetVia forgets the tunnels through an address of a waypoint that is not used any more.
func (t *tunnels) forgetVia(v detour.Via) {
	delete(t.offers, v)
	for _, k := range policy.Kinds() {
		delete(t.standings, standingKey{v, k})
		delete(t.offered, standingKey{v, k})
	}
}

// setOffers records the kinds that a waypoint offers now at an address.
func (t *tunnels) setOffers(v detour.Via, kinds []path.Kind) {
	t.offers[v] = kinds
	for _, k := range kinds {
		t.offered[standingKey{v, k}] = true
	}
}

// whyNotOffered explains why a kind that was on offer before no longer is. It is empty for a kind that never was.
func (t *tunnels) whyNotOffered(key standingKey) string {
	if !t.offered[key] {
		return ""
	}
	return "the waypoint has withdrawn it: its operator has limited the servers that this member may reach, or no longer offers this kind to anyone"
}

// forgetAdmissions forgets the admissions of these keepers.
func (t *tunnels) forgetAdmissions(keepers []keeper) {
	for addr, a := range t.admission {
		if slices.ContainsFunc(keepers, func(k keeper) bool { return any(a) == any(k) }) {
			delete(t.admission, addr)
		}
	}
}

// guarded reports whether tunnels may come up, and opens the guard when one is first on offer.
func (t *tunnels) guarded() bool {
	if t.guard != nil {
		return true
	}
	offered := false
	for _, kinds := range t.offers {
		offered = offered || slices.Contains(kinds, path.WireGuard) || slices.Contains(kinds, path.OpenVPN)
	}
	if !offered || len(t.names) == 0 {
		return false
	}
	g, err := tunnel.OpenGuard(t.names, t.reserved)
	if err != nil {
		t.log.Error("no tunnels are used", "err", err)
		return false
	}
	t.guard = g
	return true
}

// removed returns a channel that delivers a value when another program has removed the guard's rules; checkGuard is due then.
func (t *tunnels) removed() <-chan struct{} {
	if t.guard == nil {
		return nil
	}
	return t.guard.Removed()
}

// checkGuard puts the guard back that a reloaded firewall has flushed.
func (t *tunnels) checkGuard() {
	if t.guard == nil {
		return
	}
	switch restored, err := t.guard.Check(); {
	case err != nil:
		t.log.Warn("the firewall rules for tunnels cannot be checked", "err", err)
	case restored:
		t.log.Warn("the firewall rules for tunnels were removed by another program and have been restored")
	}
}

// expect prepares a subflow's SYN, if it is an in-band one, before it leaves.
func (t *tunnels) expect(a path.CreateSubflow, local netip.AddrPort) error {
	if a.Direct || a.Kind != path.InBand {
		return nil
	}
	admitted := t.admission[a.Remote.Addr()]
	if admitted == nil || t.syns == nil {
		return fmt.Errorf("no in-band admission at %v", a.Remote.Addr())
	}
	return t.syns.Expect(inband.Join{Local: local, Remote: a.Remote, Server: a.Server.Addr(), Auth: admitted.Auth()})
}

// forget undoes expect, when the SYN was not sent, or when its join has come up or failed. It reports
// whether the SYN was sent without the server's address, for instance because the admission had ended
// meanwhile.
func (t *tunnels) forget(local, remote netip.AddrPort) (unmarked bool) {
	return t.syns != nil && t.syns.Forget(local, remote)
}

// close ends the marking of SYNs, and the guard. All tunnels must be down. If the relay has connections that may use tunnels
// only, the guard's rules stay for these, until the next agent takes them over or dcol down removes them.
func (t *tunnels) close() error {
	var errs []error
	if t.syns != nil {
		errs = append(errs, t.syns.Close())
	}
	switch {
	case t.guard == nil:
	case t.reserved != tunnel.Reserved{}:
		errs = append(errs, t.guard.Release())
	default:
		errs = append(errs, t.guard.Close())
	}
	return errors.Join(errs...)
}

// endAt returns this host's end of a WireGuard tunnel to a waypoint's host, for connections to one of its addresses.
func (t *tunnels) endAt(v detour.Via) tunnelEnd {
	end := tunnelEnd{why: noTunnelYet}
	for key, s := range t.standings {
		if key.kind != path.WireGuard || key.via.Waypoint != v.Waypoint {
			continue
		}
		for _, open := range s.Tunnels {
			if open.Local.Is4() == v.Addr.Is4() {
				return tunnelEnd{local: open.Local}
			}
		}
		switch {
		case len(s.Tunnels) > 0:
			end.why = fmt.Sprintf("the WireGuard tunnel to it has no address of the kind of %v (client.converter.tunnel): see tunnel_ranges", v.Addr)
		case s.Why != "":
			end.why = fmt.Sprintf("the WireGuard tunnel to it is not up (client.converter.tunnel): %s", s.Why)
		}
	}
	return end
}

// endOf returns the waypoint's address to which a subflow's tunnel leads; the zero value if the tunnel is gone.
func (t *tunnels) endOf(a path.CreateSubflow) netip.Addr {
	for key, s := range t.standings {
		for _, open := range s.Tunnels {
			if key.kind == a.Kind && key.via.Waypoint == a.Waypoint && open.Local == a.Local {
				return key.via.Addr
			}
		}
	}
	return netip.Addr{}
}

// keepTunnels begins to keep a tunnel of each kind that the operator uses.
func (c *Client) keepTunnels(ctx context.Context, u *usedWaypoint, leads []tunnel.Lead) error {
	changed := func(s tunnel.Standing) { c.tunnelChanged(ctx, s) }
	log, settings := c.config.Log.With("subsystem", "tunnel"), c.config.Settings
	if settings.Client.Uses(config.InBand) {
		c.keepInBand(u, leads, changed)
	}
	if settings.Client.Uses(config.WireGuard) {
		k, err := tunnel.NewWireGuard(tunnel.Interface(path.WireGuard, u.number), c.tunnels.keys.of(u.peer.Name), settings.TunnelRanges, leads, changed, log)
		if err != nil {
			return err
		}
		u.tunnels = append(u.tunnels, k)
	}
	if settings.Client.Uses(config.OpenVPN) {
		id := settings.Identity
		u.tunnels = append(u.tunnels, tunnel.NewOpenVPN(tunnel.OpenVPNConfig{
			Interface: tunnel.Interface(path.OpenVPN, u.number), Ranges: settings.TunnelRanges, Waypoint: u.peer.Name,
			Files: openvpn.Files{Certificate: id.Certificate, Key: id.Key, CA: id.CA, CRL: id.CRL},
			Log:   log,
		}, leads, changed))
	}
	for _, l := range leads {
		u.admissions = append(u.admissions, c.keepConverter(ctx, l))
	}
	for _, k := range u.admissions {
		u.begin(k)
	}
	return nil
}

// keepInBand begins to keep the admission at each address, or notes why this host cannot have in-band detours.
// The other kinds can be had.
func (c *Client) keepInBand(u *usedWaypoint, leads []tunnel.Lead, changed func(tunnel.Standing)) {
	t := c.tunnels
	if t.syns == nil {
		c.backlog = append(c.backlog, path.KindUnready{Waypoint: u.peer.Name, Kind: path.InBand, Err: t.noSyns})
	}
	for _, l := range leads {
		switch {
		case t.syns == nil:
			t.standings[standingKey{l.Via, path.InBand}] = tunnel.Standing{Via: l.Via, Kind: path.InBand, Why: tunnel.OneLine(t.noSyns)}
		case l.Via.Addr.Is4(): // the option has no room for IPv6
			k := tunnel.NewInBand(l, t.syns.Timestamps, changed, c.config.Log.With("subsystem", "tunnel"))
			t.admission[l.Via.Addr] = k
			u.admissions = append(u.admissions, k)
		}
	}
}

// tunnelChanged is called by the keeper of a tunnel each time it has looked at it.
func (c *Client) tunnelChanged(ctx context.Context, s tunnel.Standing) {
	c.postFor(ctx, s.Via, func(now time.Time) {
		key := standingKey{s.Via, s.Kind}
		before, known := c.tunnels.standings[key]
		if up := len(s.Tunnels) > 0; !known || up != (len(before.Tunnels) > 0) || s.Why != before.Why {
			c.log.Debug("tunnel", "kind", s.Kind.String(), "waypoint", s.Via.Waypoint, "up", up, "why", s.Why)
		}
		c.tunnels.standings[key] = s
		if s.Kind == path.WireGuard {
			c.tellConverterKeepers(s.Via.Waypoint)
		}
		if len(s.Tunnels) == 0 || len(s.Tunnels) < len(before.Tunnels) {
			c.backlog = append(c.backlog, c.book.Closed(s.Via, s.Kind)...)
		}
		unready := path.KindUnready{Waypoint: s.Via.Waypoint, Kind: s.Kind}
		if len(s.Tunnels) == 0 && s.Why != "" {
			unready.Err = errors.New(s.Why)
		}
		c.backlog = append(c.backlog, unready)
		for _, t := range s.Tunnels {
			c.backlog = append(c.backlog, c.book.Opened(s.Via, t, now)...)
		}
		c.decide(ctx, now)
	})
}

// pokeTunnels makes every keeper look at its tunnel, after a session or the host's network has changed.
// Tunnels with an interface wait for the guard.
func (c *Client) pokeTunnels() {
	guarded := c.tunnels.guarded()
	for _, u := range c.roster.using {
		for _, k := range u.admissions {
			k.Poke()
		}
		if !guarded {
			continue
		}
		for _, k := range u.tunnels {
			if !u.begun {
				u.begin(k)
			}
			k.Poke()
		}
		u.begun = true
	}
}
