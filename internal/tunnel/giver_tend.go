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

// tablesEvery is how long an nftables table of ours is gone at most, when a
// firewall that is reloaded has taken it away.
const tablesEvery = 5 * time.Second

// Run takes back what nobody asked for again, and follows what changes on this
// host, until ctx ends; then it takes back everything.
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
		case now := <-tick.C:
			g.expire(now)
			g.tend(now)
		}
	}
}

// stop ends the far end and takes its interface back. Requests may still be under way.
func (g *Giver) stop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.far.close(), g.host.removeTunnel(g.far.iface()), g.guard.Close())
}

// networkChanged has this host's networks read at the next tick: changes come in
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
			g.log.Warn("a tunnel whose lease is over is not taken back", "member", h.member, "err", err)
		}
	}
}

// tend has the far end look after itself, and sees to what others may have
// changed on this host.
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
	g.complain(errors.Join(err, g.checkGuard(now)))
}

// follow has this host's tunnel be as it is to be with the networks that are in
// use now. A tunnel with an address that this host uses by now ends: what is for
// that network must not go to a member.
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
			g.log.Warn("a member's tunnel ends: this host uses its address itself now", "member", h.member, "addresses", h.addrs())
			errs = append(errs, g.end(id))
			continue
		}
		for _, a := range h.addrs() {
			want[a] = true
		}
	}
	return errors.Join(append(errs, g.setUp(), g.setPeers(want))...)
}

// setUp gives the waypoint's interface its addresses.
func (g *Giver) setUp() error {
	return g.host.setTunnel(netstate.Tunnel{Interface: g.far.iface(), MTU: g.far.mtu(), Addresses: g.pool.Gateways()})
}

// setPeers has the interface lead to exactly these.
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

// checkGuard puts the guard back that a reloaded firewall has flushed.
func (g *Giver) checkGuard(now time.Time) error {
	if now.Sub(g.looked) < tablesEvery {
		return nil
	}
	g.looked = now
	restored, err := g.guard.Check()
	if restored {
		g.log.Warn("somebody had removed the rules that keep this host's own traffic out of members' tunnels; they are back")
	}
	return err
}

// complain says what is amiss with the far end, once as long as it is.
func (g *Giver) complain(err error) {
	if err == nil {
		g.amiss = ""
		return
	}
	if text := err.Error(); text != g.amiss {
		g.amiss = text
		g.log.Warn("tunnels cannot be looked after", "err", err)
	}
}
