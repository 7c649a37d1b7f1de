package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// giver gives tunnels of one kind; it is *tunnel.Giver.
type giver interface {
	Give(ctx context.Context, peer session.Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal)
	Expel(member string) error
	Interface() string
	Problem() error
	Run(ctx context.Context) error
}

// open makes ready what the operator offers. What this host cannot give is left
// out and named in the status: the rest of the waypoint works without it.
func (h *handler) open(ctx context.Context, p *Plan, session netip.AddrPort) error {
	var interfaces []string
	for _, k := range p.config.Waypoint.Offers {
		g, err := h.giver(ctx, p, k, session)
		if err != nil {
			p.log.Error("a kind of detour is not offered", "kind", k, "err", err)
			h.problems = append(h.problems, fmt.Sprintf("%s %s: %s", k, api.NotOffered, tunnel.OneLine(err)))
			continue
		}
		kind, _ := wire.ParseKind(string(k))
		h.offers = append(h.offers, kind)
		if g != nil {
			h.givers[kind] = g
			interfaces = append(interfaces, g.Interface())
		}
	}
	return h.way.SetTunnelInterfaces(interfaces)
}

// giver opens the waypoint's end of a kind; nil where the waypoint itself is all
// it takes.
func (h *handler) giver(ctx context.Context, p *Plan, k config.Kind, session netip.AddrPort) (giver, error) {
	give := tunnel.GiveConfig{
		// Both secrets are derived, so that they are the same after a restart and members' tunnels go on.
		Seed: p.identity.Derive(string(k) + " addresses"), Ranges: p.config.TunnelRanges,
		PerMember: p.config.Waypoint.TunnelsPerMember, Lease: p.config.Waypoint.MappingLifetime.Std(),
		Gate: h.way, Log: p.log.With("subsystem", "tunnel"),
	}
	switch k {
	case config.WireGuard:
		return tunnel.GiveWireGuard(tunnel.GiveWireGuardConfig{GiveConfig: give, Key: p.identity.Derive("wireguard"), Session: session})
	case config.OpenVPN:
		return tunnel.GiveOpenVPN(ctx, tunnel.GiveOpenVPNConfig{
			GiveConfig: give, Port: p.config.Waypoint.OpenVPNPort, Files: openvpnFiles(p), Dir: filepath.Join(p.config.RunDir, openvpnDir),
		})
	case config.InBand:
		if ok, why := h.way.OffersInBand(); !ok {
			return nil, errors.New(why)
		}
	case config.Mapped:
	}
	return nil, nil
}

// Offers implements session.Handler.
func (h *handler) Offers() []wire.Kind { return h.offers }

// Tunnel implements session.Handler.
func (h *handler) Tunnel(ctx context.Context, p session.Peer, r wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal) {
	if g := h.givers[r.Kind]; g != nil {
		granted, refusal := g.Give(ctx, p, r)
		if refusal == nil && r.Port != 0 {
			h.doorman.admit(p.Name, netip.AddrPortFrom(p.Addr, r.Port))
		}
		return granted, refusal
	}
	if r.Kind == wire.InBand {
		return h.way.InBand(ctx, p, r) // which refuses where it is off
	}
	return wire.TunnelGrant{}, &wire.Refusal{Code: wire.NotOffered}
}

// SessionMoved implements session.Handler.
func (h *handler) SessionMoved(before, now session.Peer) { h.way.SessionMoved(before, now) }

// MemberLeft implements session.Handler.
func (h *handler) MemberLeft(now session.Peer, from netip.Addr) { h.way.MemberLeft(now, from) }

// expel takes everything back that a member has here.
func (h *handler) expel(member string) error {
	err := h.way.Expel(member)
	for _, g := range h.givers {
		err = errors.Join(err, g.Expel(member))
	}
	return err
}
