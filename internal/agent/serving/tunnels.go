package serving

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
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// giver gives tunnels of one kind. It is *tunnel.Giver.
type giver interface {
	Give(ctx context.Context, peer session.Peer, req wire.TunnelRequest) (wire.TunnelGrant, *wire.Refusal)
	Expel(member string) error
	Interface() string
	Gateway(member netip.Addr) netip.Addr
	Problem() error
	Run(ctx context.Context) error
}

// offered lists the kinds of detours that this host gives.
type offered struct {
	offers   []wire.Kind
	givers   map[wire.Kind]giver // of tunnels
	problems []string            // reasons why kinds that the operator wants to offer are not
}

// openOffers prepares the kinds of detours that the operator offers. Kinds that this host cannot give are left out, and
// the status names them. The others work without them. session is the address at which sessions are served.
func openOffers(ctx context.Context, c Config, way *waypoint.Waypoint, session netip.AddrPort) offered {
	o := offered{givers: make(map[wire.Kind]giver)}
	for _, k := range c.Settings.Waypoint.Offers {
		g, err := openGiver(ctx, c, way, k, session)
		if err != nil {
			c.Log.Error("a kind of detour is not offered", "kind", k, "err", err)
			o.problems = append(o.problems, fmt.Sprintf("%s %s: %s", k, api.NotOffered, tunnel.OneLine(err)))
			continue
		}
		kind, _ := wire.ParseKind(string(k))
		o.offers = append(o.offers, kind)
		if g != nil {
			o.givers[kind] = g
		}
	}
	return o
}

// interfaces returns the interfaces of all tunnels.
func (o *offered) interfaces() (list []string) {
	for _, g := range o.givers {
		list = append(list, g.Interface())
	}
	return list
}

// openGiver opens the waypoint's end of tunnels of a kind. It returns nil for kinds without tunnels.
func openGiver(ctx context.Context, c Config, way *waypoint.Waypoint, k config.Kind, session netip.AddrPort) (giver, error) {
	operator, id := c.Settings.Waypoint, c.Settings.Identity
	give := tunnel.GiveConfig{
		// Both secrets are derived, so that they are the same after a restart, and members' tunnels continue.
		Seed: c.Identity.Derive(string(k) + " addresses"), Ranges: c.Settings.TunnelRanges,
		PerMember: operator.TunnelsPerMember, Lease: operator.MappingLifetime.Std(),
		Gate: way, Log: c.Log.With("subsystem", "tunnel"),
	}
	switch k {
	case config.WireGuard:
		return tunnel.GiveWireGuard(tunnel.GiveWireGuardConfig{GiveConfig: give, Key: c.Identity.Derive("wireguard"), Session: session})
	case config.OpenVPN:
		return tunnel.GiveOpenVPN(ctx, tunnel.GiveOpenVPNConfig{
			GiveConfig: give, Port: uint16(operator.OpenVPNPort), Dir: filepath.Join(c.Settings.RunDir, openvpn.Dir),
			Files: openvpn.Files{Certificate: id.Certificate, Key: id.Key, CA: id.CA, CRL: id.CRL},
		})
	case config.InBand:
		if ok, why := way.OffersInBand(); !ok {
			return nil, errors.New(why)
		}
	case config.Mapped, config.Converter:
	}
	return nil, nil
}
