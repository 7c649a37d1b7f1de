package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/detour-collective/dcol/internal/bpf/inband"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/mptcp"
	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/tunnel"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// standingKey is one kind of tunnel through one address of a waypoint.
type standingKey struct {
	via  detour.Via
	kind path.Kind
}

// tunnels is the client role's part for detours that lead to any server. The
// loop's goroutine owns it.
type tunnels struct {
	keepers   []keeper
	admission map[netip.Addr]admission // to in-band detours, by waypoint address
	standings map[standingKey]tunnel.Standing
	offers    map[detour.Via][]path.Kind // as each session last said
	syns      synMarker                  // nil: no in-band detours
}

func newTunnels() tunnels {
	return tunnels{
		admission: make(map[netip.Addr]admission), standings: make(map[standingKey]tunnel.Standing),
		offers: make(map[detour.Via][]path.Kind),
	}
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

// openTunnels begins to keep a tunnel of each kind that the operator uses to each
// waypoint, over the sessions that openSessions made.
func (c *client) openTunnels(ctx context.Context, p *Plan, leads map[string][]tunnel.Lead, group *errgroup.Group) error {
	tell := func(s tunnel.Standing) { c.tunnelStands(ctx, s) }
	log := p.log.With("subsystem", "tunnel")
	if p.config.Client.Uses(config.InBand) {
		if err := c.openSyns(p.config.Client.Cgroup); err != nil {
			c.noInBand(leads, err)
		}
	}
	for n, w := range p.config.Client.Waypoints {
		of := leads[w.Name]
		if c.tunnels.syns != nil {
			for _, l := range of {
				if !l.Via.Addr.Is4() {
					continue // the option has no room for IPv6
				}
				k := tunnel.NewInBand(l, c.tunnels.syns.Timestamps, tell, log)
				c.tunnels.admission[l.Via.Addr] = k
				c.tunnels.keepers = append(c.tunnels.keepers, k)
			}
		}
		if p.config.Client.Uses(config.WireGuard) {
			k, err := tunnel.NewWireGuard(fmt.Sprintf("dcolwg%d", n), of, tell, log)
			if err != nil {
				return err
			}
			c.tunnels.keepers = append(c.tunnels.keepers, k)
		}
		if p.config.Client.Uses(config.OpenVPN) {
			c.tunnels.keepers = append(c.tunnels.keepers, tunnel.NewOpenVPN(tunnel.OpenVPNConfig{
				Interface: fmt.Sprintf("dcolov%d", n), Waypoint: w.Name, Files: openvpnFiles(p),
				Dir: filepath.Join(p.config.RunDir, "openvpn-"+w.Name), Log: log,
			}, of, tell))
		}
	}
	for _, k := range c.tunnels.keepers {
		group.Go(func() error { k.Run(ctx); return nil })
	}
	return nil
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
	c.attachSyns()
	return nil
}

// noInBand notes why in-band detours cannot be had on this host. The other kinds
// can.
func (c *client) noInBand(leads map[string][]tunnel.Lead, err error) {
	c.problems = append(c.problems, fmt.Sprintf("in-band detours are not used: %v", err))
	c.log.Warn("in-band detours are not used", "err", err)
	for waypoint, of := range leads {
		c.backlog = append(c.backlog, path.KindUnready{Waypoint: waypoint, Kind: path.InBand, Err: err})
		for _, l := range of {
			c.tunnels.standings[standingKey{l.Via, path.InBand}] = tunnel.Standing{Via: l.Via, Kind: path.InBand, Why: err.Error()}
		}
	}
}

// attachSyns has SYNs authenticated on every interface by which a waypoint may be
// reached.
func (c *client) attachSyns() {
	if c.tunnels.syns == nil {
		return
	}
	var outside []int
	for _, i := range c.interfaces() {
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
		c.log.Debug("tunnel", "kind", s.Kind.String(), "waypoint", s.Via.Waypoint, "up", len(s.Tunnels) > 0, "why", s.Why)
		key := standingKey{s.Via, s.Kind}
		before := c.tunnels.standings[key]
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

// poke has every tunnel looked at: a session has changed, or the host's network.
func (t *tunnels) poke() {
	for _, k := range t.keepers {
		k.Poke()
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
// that was without the server's address.
func (t *tunnels) forget(local, remote netip.AddrPort) (unmarked bool) {
	return t.syns != nil && t.admission[remote.Addr()] != nil && t.syns.Forget(local, remote)
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

// close ends what marks SYNs. The keepers end by themselves.
func (t *tunnels) close() error {
	if t.syns == nil {
		return nil
	}
	return t.syns.Close()
}
