package tunnel

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// tablesEvery is the time between two checks of our nftables tables, in case a firewall reload removed one and no event
// has reported that.
const tablesEvery = 5 * time.Second

// Run ends tunnels whose lease is over and adapts to changes on this host until ctx ends. Then it
// ends all tunnels.
func (g *Giver) Run(ctx context.Context) error {
	changes, err := g.host.watch(ctx)
	if err != nil {
		return errors.Join(err, g.stop())
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return g.stop()
		case _, ok := <-changes:
			if !ok {
				changes = nil // ctx has ended
			}
			g.networkChanged()
		case <-g.guard.Removed():
			g.restore(g.checkGuard)
		case <-g.removed():
			g.restore(g.far.checkRules)
		case now := <-tick.C:
			g.expire(now)
			g.tend(now)
		}
	}
}

// stop ends the far end and removes its interface. Requests may still be in progress.
func (g *Giver) stop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.far.close(), g.host.removeTunnel(g.far.iface()), g.guard.Close())
}

// networkChanged makes the next tick examine this host's networks. It does not do so itself because changes come in
// bursts, and some are our own.
func (g *Giver) networkChanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.changed = true
}

func (g *Giver) expire(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, h := range g.held {
		if now.Before(h.until) {
			continue
		}
		if err := g.end(id); err != nil {
			g.log.Warn("cannot end a tunnel whose lease is over", "member", h.member, "err", err)
		}
	}
}

// tend lets the far end maintain itself, and repairs what others may have changed on this host.
func (g *Giver) tend(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []held
	for _, h := range g.held {
		list = append(list, h)
	}
	anew, err := g.far.tend(now, list)
	if anew {
		for _, h := range list {
			err = errors.Join(err, g.far.admit(h.holder, h.assigned, &wire.TunnelGrant{}))
		}
	}
	if anew || g.changed {
		g.changed = false
		err = errors.Join(err, g.follow())
	}
	if now.Sub(g.looked) >= tablesEvery {
		g.looked = now
		err = errors.Join(err, g.checkGuard(), g.far.checkRules())
	}
	g.complain(err)
}

// removed returns the far end's channel, which changes when the far end is opened again.
func (g *Giver) removed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.far.removed()
}

// restore puts rules back that another program has removed.
func (g *Giver) restore(check func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.complain(check())
}

// follow adapts the tunnels to the networks now in use. A tunnel whose address this host has come
// to use elsewhere ends, because packets for that network must not go to a member.
func (g *Giver) follow() error {
	used, err := g.host.usedPrefixes(g.far.iface())
	if err != nil {
		return err
	}
	g.pool.Avoid(used)
	var errs []error
	want := make(map[netip.Addr]bool)
	for id, h := range g.held {
		if slices.ContainsFunc(h.addrs(), g.pool.Conflicts) {
			g.log.Warn("a member's tunnel ends because this host now uses its address", "member", h.member, "addresses", h.addrs())
			errs = append(errs, g.end(id))
			continue
		}
		for _, a := range h.addrs() {
			want[a] = true
		}
	}
	return errors.Join(append(errs, g.setUp(), g.setPeers(want))...)
}

// setUp assigns the waypoint's interface its addresses.
func (g *Giver) setUp() error {
	return g.host.setTunnel(netstate.Tunnel{Interface: g.far.iface(), MTU: g.far.mtu(), Addresses: g.pool.Gateways()})
}

// setPeers makes the routes into the interface equal to want.
func (g *Giver) setPeers(want map[netip.Addr]bool) error {
	have, err := g.host.peers(g.far.iface())
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range have {
		if !want[a] {
			errs = append(errs, g.host.removePeer(g.far.iface(), a))
		}
		delete(want, a)
	}
	for a := range want {
		errs = append(errs, g.host.setPeer(g.far.iface(), a, g.far.peerMTU(a)))
	}
	return errors.Join(errs...)
}

// checkGuard restores the guard after a firewall reload has flushed it.
func (g *Giver) checkGuard() error {
	restored, err := g.guard.Check()
	if restored {
		g.log.Warn("the rules that keep this host's own traffic out of members' tunnels were removed by another program and have been restored")
	}
	return err
}

// complain logs a problem of the far end once for as long as it lasts.
func (g *Giver) complain(err error) {
	if err == nil {
		g.amiss = ""
		return
	}
	if text := err.Error(); text != g.amiss {
		g.amiss = text
		g.log.Warn("cannot maintain tunnels", "err", err)
	}
}
