package agent

import (
	"context"
	"crypto/ecdh"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/membership"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// What this host says of itself to the collective: what it really gives, at the addresses that it has.

// maxOffered is how many addresses a record holds.
const maxOffered = 8

// reachable are the addresses to offer: those that the operator names; else those at which a router has
// mapped a port to this host, and this host's own. Where a family has public ones, private ones are left
// out: they lead elsewhere from most of the world.
func reachable(named, mapped, own []netip.Addr) []netip.Addr {
	if len(named) > 0 {
		return named
	}
	var all []netip.Addr
	for _, a := range slices.Concat(mapped, own) {
		if a = a.Unmap().WithZone(""); a.IsGlobalUnicast() && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	public := func(v6 bool) bool {
		return slices.ContainsFunc(all, func(a netip.Addr) bool { return a.Is6() == v6 && !nat.IsPrivate(a) })
	}
	hasPublic := map[bool]bool{false: public(false), true: public(true)}
	all = slices.DeleteFunc(all, func(a netip.Addr) bool { return nat.IsPrivate(a) && hasPublic[a.Is6()] })
	return all[:min(len(all), maxOffered)]
}

// lans are the networks around this host; none if they cannot be listed.
func lans(log *slog.Logger) func() []netip.Prefix {
	return func() []netip.Prefix {
		all, err := enrol.LANs()
		if err != nil {
			log.Warn("the collective may give this host addresses that a network around it has", "err", err)
		}
		return all
	}
}

// offering keeps what this host says of itself up to date.
type offering struct {
	offer func(membership.Offer)
	base  membership.Offer // all but addresses and port
	named []netip.Addr
	port  uint16   // 0: this host is no waypoint
	from  *outside // knows how others reach it; nil: it is no waypoint

	own    []netip.Addr
	mapped netip.AddrPort // where others reach our port, if that is not at an address of ours; zero: nowhere
	punch  bool           // they do once we have sent to them
}

// newOffering begins with what the configuration and the waypoint role say.
func newOffering(p *Plan, s *serving, offer func(membership.Offer)) (*offering, error) {
	o := &offering{offer: offer, named: p.config.Collective.Addresses, base: membership.Offer{Region: p.config.Collective.Region}}
	for _, r := range p.config.Roles {
		o.base.Roles = append(o.base.Roles, string(r))
	}
	if s == nil {
		return o, nil
	}
	_, port, err := net.SplitHostPort(s.listen)
	if err != nil {
		return nil, fmt.Errorf("offer what is at %q: %w", s.listen, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("offer what is at %q: %w", s.listen, err)
	}
	o.port, o.from, o.base.Kinds = uint16(n), s.outside, kindWords(s.offers)
	if slices.Contains(s.offers, wire.WireGuard) {
		if o.base.Key, err = wireguardKey(p.identity); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// wireguardKey is the public half of the key that the waypoint's end of WireGuard has.
func wireguardKey(id *collective.Identity) (directory.WireGuardKey, error) {
	secret := id.Derive("wireguard")
	key, err := ecdh.X25519().NewPrivateKey(secret[:])
	if err != nil {
		return directory.WireGuardKey{}, fmt.Errorf("offer WireGuard: %w", err)
	}
	return directory.WireGuardKey(key.PublicKey().Bytes()), nil
}

func kindWords(kinds []wire.Kind) (words []string) {
	for _, k := range kinds {
		words = append(words, k.String())
	}
	return words
}

// say offers what there is now.
func (o *offering) say() {
	offer := o.base
	if o.port != 0 {
		var mapped []netip.Addr
		offer.Port, offer.Punch = o.port, o.punch
		if o.mapped.IsValid() && len(o.named) == 0 { // a record has one port
			mapped, offer.Port = []netip.Addr{o.mapped.Addr()}, o.mapped.Port()
		}
		offer.Addresses = reachable(o.named, mapped, o.own)
	}
	o.offer(offer)
}

// run follows this host's addresses, and what routers do for it, until ctx ends.
func (o *offering) run(ctx context.Context, log *slog.Logger) error {
	if o.port == 0 || len(o.named) > 0 {
		o.say()
		return nil
	}
	routes, err := netstate.OpenAddresses()
	if err != nil {
		return err
	}
	defer routes.Close()
	changed, err := netstate.WatchAddresses(ctx)
	if err != nil {
		return err
	}
	for {
		if own, err := ownAddresses(routes); err != nil {
			log.Warn("this host's addresses cannot be listed", "err", err)
		} else {
			o.own = own
		}
		o.mapped = netip.AddrPort{}
		at, how := o.from.reach()
		if o.punch = how == nat.Punchable; o.punch || how == nat.Reachable {
			o.mapped = at
		}
		o.say()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-o.from.changed:
		}
		// A host that moves loses its address before it has another.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settleAddresses):
		}
	}
}

// settleAddresses is how long addresses may come and go before the collective is told.
const settleAddresses = 2 * time.Second

// ownAddresses are this host's, without those of our tunnels.
func ownAddresses(routes *netstate.Addresses) (own []netip.Addr, err error) {
	all, err := routes.Usable()
	if err != nil {
		return nil, err
	}
	interfaces, err := routes.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		ours := slices.ContainsFunc(interfaces, func(i netstate.Interface) bool { return i.Index == a.IfIndex && tunnel.Ours(i.Name) })
		if !ours {
			own = append(own, a.Addr)
		}
	}
	return own, nil
}
