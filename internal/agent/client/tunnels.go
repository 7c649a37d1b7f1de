package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tunnel"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// standingKey is one kind of tunnel through one address of a waypoint.
type standingKey struct {
	via  detour.Via
	kind path.Kind
}

// tunnels is the client role's part for detours that lead to any server, whichever waypoint they go
// through. The loop's goroutine owns it.
type tunnels struct {
	names     []string                 // of the interfaces that there may be
	guard     guard                    // nil: not needed yet
	admission map[netip.Addr]admission // to in-band detours, by waypoint address
	standings map[standingKey]tunnel.Standing
	offers    map[detour.Via][]path.Kind // as each session last said
	syns      synMarker                  // nil: no in-band detours
	noSyns    error                      // why not
}

func newTunnels() *tunnels {
	return &tunnels{
		admission: make(map[netip.Addr]admission), standings: make(map[standingKey]tunnel.Standing),
		offers: make(map[detour.Via][]path.Kind),
	}
}

// forgetVia forgets how things stood at an address of a waypoint that is not used any more.
func (t *tunnels) forgetVia(v detour.Via) {
	delete(t.offers, v)
	for _, k := range path.Kinds() {
		delete(t.standings, standingKey{v, k})
	}
}

// forgetAdmissions forgets what these keepers got.
func (t *tunnels) forgetAdmissions(keepers []keeper) {
	for addr, a := range t.admission {
		if slices.ContainsFunc(keepers, func(k keeper) bool { return any(a) == any(k) }) {
			delete(t.admission, addr)
		}
	}
}

// guard lets nothing but answers come out of tunnels; it is that of tunnel.OpenGuard.
type guard interface {
	Check() (restored bool, err error)
	Close() error
}

// keeper keeps one tunnel; it is *tunnel.Keeper.
type keeper interface {
	Run(ctx context.Context)
	Poke()
}

// admission knows what SYNs to a waypoint are authenticated with; it is
// *tunnel.InBand.
type admission interface{ Auth() *inband.Auth }

// synMarker puts the server's address into chosen SYNs; it is *inband.Sender.
type synMarker interface {
	Expect(inband.Join) error
	Forget(local, remote netip.AddrPort) (unmarked bool)
	Attach(interfaces []int) error
	Timestamps() (bool, error)
	Close() error
}

// prepareTunnels makes tunnels possible, to as many waypoints as there may be at a time.
func (c *client) prepareTunnels(operator config.Client) {
	for n := range c.room {
		for kind, name := range map[config.Kind]string{
			config.WireGuard: tunnel.Interface(path.WireGuard, n), config.OpenVPN: tunnel.Interface(path.OpenVPN, n),
		} {
			if operator.Uses(kind) {
				c.tunnels.names = append(c.tunnels.names, name)
			}
		}
	}
	if !operator.Uses(config.InBand) {
		return
	}
	if err := c.openSyns(operator.Cgroup); err != nil {
		c.tunnels.noSyns = err
		c.problems = append(c.problems, fmt.Sprintf("%s %s: %s", config.InBand, api.NotUsed, lack(err)))
		c.log.Warn("in-band detours are not used", "err", err)
	}
}

// lack says in one line what this host lacks for in-band detours, and the mend.
func lack(err error) string {
	if u, ok := errors.AsType[*inband.UnavailableError](err); ok {
		return fmt.Sprintf("%s (%s)", tunnel.OneLine(u.Err), u.Mend)
	}
	return tunnel.OneLine(err)
}

// keepInBand begins to keep the admission at each address, or notes why in-band detours cannot be had on
// this host. The other kinds can.
func (c *client) keepInBand(u *using, leads []tunnel.Lead, tell func(tunnel.Standing)) {
	t := c.tunnels
	if t.syns == nil {
		c.backlog = append(c.backlog, path.KindUnready{Waypoint: u.peer.Name, Kind: path.InBand, Err: t.noSyns})
	}
	for _, l := range leads {
		switch {
		case t.syns == nil:
			t.standings[standingKey{l.Via, path.InBand}] = tunnel.Standing{Via: l.Via, Kind: path.InBand, Why: tunnel.OneLine(t.noSyns)}
		case l.Via.Addr.Is4(): // the option has no room for IPv6
			k := tunnel.NewInBand(l, t.syns.Timestamps, tell, c.plan.log.With("subsystem", "tunnel"))
			t.admission[l.Via.Addr] = k
			u.inBand = append(u.inBand, k)
		}
	}
}

func openvpnFiles(p *Plan) openvpn.Files {
	id := p.config.Identity
	return openvpn.Files{Certificate: id.Certificate, Key: id.Key, CA: id.CA, CRL: id.CRL}
}

// openSyns makes in-band detours possible.
func (c *client) openSyns(cgroup string) error {
	syns, err := inband.OpenSender(inband.SenderConfig{Cgroup: cgroup})
	if err != nil {
		return err
	}
	c.tunnels.syns = syns
	c.attachSyns(c.interfaces())
	return nil
}

// attachSyns has SYNs authenticated on every one of the host's interfaces by which a
// waypoint may be reached.
func (c *client) attachSyns(interfaces []netstate.Interface) {
	if c.tunnels.syns == nil {
		return
	}
	var outside []int
	for _, i := range interfaces {
		if !i.Loopback && !tunnel.Ours(i.Name) {
			outside = append(outside, i.Index)
		}
	}
	if err := c.tunnels.syns.Attach(outside); err != nil {
		c.log.Warn("in-band SYNs are not authenticated on some interfaces", "err", err)
	}
}

// interfaces lists those that are up.
func (c *client) interfaces() []netstate.Interface {
	list, err := c.routes.Interfaces()
	if err != nil {
		c.log.Warn("this host's interfaces cannot be listed", "err", err)
	}
	return list
}

// tunnelStands takes in how a tunnel stands now.
func (c *client) tunnelStands(ctx context.Context, s tunnel.Standing) {
	c.post(ctx, func(now time.Time) {
		if c.waypoints[s.Via] == nil {
			return // it was left meanwhile
		}
		key := standingKey{s.Via, s.Kind}
		before, known := c.tunnels.standings[key]
		if up := len(s.Tunnels) > 0; !known || up != (len(before.Tunnels) > 0) || s.Why != before.Why {
			c.log.Debug("tunnel", "kind", s.Kind.String(), "waypoint", s.Via.Waypoint, "up", up, "why", s.Why)
		}
		c.tunnels.standings[key] = s
		if len(s.Tunnels) == 0 || len(s.Tunnels) < len(before.Tunnels) {
			c.backlog = append(c.backlog, c.book.Closed(s.Via, s.Kind)...)
		}
		unready := path.KindUnready{Waypoint: s.Via.Waypoint, Kind: s.Kind}
		if len(s.Tunnels) == 0 && s.Why != "" {
			unready.Err = errors.New(s.Why)
		}
		c.backlog = append(c.backlog, unready)
		for _, t := range s.Tunnels {
			c.backlog = append(c.backlog, c.book.Opened(s.Via, t)...)
		}
		c.decide(ctx, now)
	})
}

// pokeTunnels has every tunnel looked at: a session has changed, or the host's
// network. Those that are interfaces wait for the guard, which comes when one is
// first on offer.
func (c *client) pokeTunnels() {
	guarded := c.guarded()
	for _, u := range c.using {
		for _, k := range u.inBand {
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

// guarded: tunnels may come up.
func (c *client) guarded() bool {
	t := c.tunnels
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
	g, err := tunnel.OpenGuard(t.names)
	if err != nil {
		c.log.Error("no tunnels are used", "err", err)
		return false
	}
	t.guard = g
	return true
}

// checkGuard puts the guard back that a reloaded firewall has flushed.
func (c *client) checkGuard() {
	if c.tunnels.guard == nil {
		return
	}
	switch restored, err := c.tunnels.guard.Check(); {
	case err != nil:
		c.log.Warn("the guard of tunnels cannot be looked after", "err", err)
	case restored:
		c.log.Warn("somebody had removed the guard of tunnels; it is back")
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

// forget: the SYN was not sent, or its join has come to an end. It tells whether
// that was without the server's address. The admission may have ended meanwhile.
func (t *tunnels) forget(local, remote netip.AddrPort) (unmarked bool) {
	return t.syns != nil && t.syns.Forget(local, remote)
}

var errOutsideCgroup = errors.New("the program is outside the cgroup that gets in-band detours ([client] cgroup)")

// subflowClosed says what the end of a subflow means. A join that the waypoint
// could not know for an in-band one says nothing about the path or the server.
func (c *client) subflowClosed(ev mptcp.Event) path.Event {
	if c.tunnels.forget(ev.Local, ev.Remote) {
		return path.CreateFailed{Token: path.Token(ev.Token), LocalID: ev.LocalID, Err: errOutsideCgroup}
	}
	closed := path.SubflowClosed{Token: path.Token(ev.Token), LocalID: ev.LocalID, Local: ev.Local, Remote: ev.Remote}
	if ev.Err != 0 {
		closed.Err = ev.Err
	}
	return closed
}

// close ends what marks SYNs, and the guard; all tunnels are down.
func (t *tunnels) close() error {
	var errs []error
	if t.syns != nil {
		errs = append(errs, t.syns.Close())
	}
	if t.guard != nil {
		errs = append(errs, t.guard.Close())
	}
	return errors.Join(errs...)
}
