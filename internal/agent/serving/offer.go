package serving

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

	"github.com/detour-collective/dcol/internal/agent/member"
	"github.com/detour-collective/dcol/internal/agent/outside"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/membership"
	"github.com/detour-collective/dcol/internal/nat"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// This file maintains this host's record in the collective: the detours that it offers, at its addresses.

// maxOffered is the number of addresses that a record holds.
const maxOffered = 8

// reachable returns the addresses to offer: those that the operator names, or else this host's own and those at which a
// router has mapped a port to it. If a family has public addresses, it leaves out private ones, because they lead to other
// hosts in most other networks.
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

// offering keeps this host's record in the collective up to date.
type offering struct {
	offer func(membership.Offer)
	base  membership.Offer // all but addresses and port
	named []netip.Addr
	port  uint16
	from  *outside.Outside
	log   *slog.Logger

	own    []netip.Addr
	mapped netip.AddrPort // the external address of our port, if it is not one of our own; zero: none is known
	punch  bool           // others reach it only after we have sent them a packet
}

// newOffering returns an offering without addresses. Its kinds of detours are those that the waypoint role offers.
func newOffering(c Config, offers []wire.Kind, from *outside.Outside) (*offering, error) {
	listen := c.Settings.Session.Listen
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("offer what is at %q: %w", listen, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("offer what is at %q: %w", listen, err)
	}
	o := &offering{
		offer: c.Member.Offer, base: member.BasicOffer(c.Settings, c.Settings.Roles), named: c.Settings.Collective.Addresses,
		port: uint16(n), from: from, log: c.Log.With("subsystem", "collective"),
	}
	o.base.Kinds = kindWords(offers)
	if slices.Contains(offers, wire.WireGuard) {
		if o.base.Key, err = wireguardKey(c.Identity); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// wireguardKey returns the public key of the waypoint's end of WireGuard tunnels.
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

// say publishes the present addresses.
func (o *offering) say() {
	offer := o.base
	var mapped []netip.Addr
	offer.Port, offer.Punch = o.port, o.punch
	if o.mapped.IsValid() && len(o.named) == 0 { // a record has one port
		mapped, offer.Port = []netip.Addr{o.mapped.Addr()}, o.mapped.Port()
	}
	offer.Addresses = reachable(o.named, mapped, o.own)
	o.offer(offer)
}

// run publishes changes of this host's addresses, and of ports that its router has opened, until ctx ends.
func (o *offering) run(ctx context.Context) error {
	if len(o.named) > 0 {
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
		if own, err := outside.OwnAddresses(routes); err != nil {
			o.log.Warn("this host's addresses cannot be listed", "err", err)
		} else {
			o.own = own
		}
		o.mapped = netip.AddrPort{}
		at, how := o.from.Reach()
		if o.punch = how == nat.Punchable; o.punch || how == nat.Reachable {
			o.mapped = at
		}
		o.say()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-o.from.Changed():
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(outside.Settle):
		}
	}
}
