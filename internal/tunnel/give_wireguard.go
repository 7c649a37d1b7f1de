package tunnel

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

// outerMTU is the MTU that the waypoint assumes for the paths to its members. A member that knows its path uses less if
// necessary.
const outerMTU = 1500

// GiveWireGuardConfig configures the waypoint's WireGuard end.
type GiveWireGuardConfig struct {
	GiveConfig
	Key     [32]byte       // private key; members' tunnels survive a restart if it stays the same
	Session netip.AddrPort // UDP address of the session listener; no address: all
}

// GiveWireGuard opens the waypoint's WireGuard end on the session's port.
func GiveWireGuard(config GiveWireGuardConfig) (*Giver, error) {
	f := &wireguardFar{
		session: config.Session, log: config.Log,
		// An IPv6 outer header is the longer one.
		device: wireguard.Config{
			Interface: wireguardInterface, PrivateKey: config.Key, Log: config.Log,
			MTU: outerMTU - wireguard.Overhead(netip.IPv6Unspecified()),
		},
	}
	if err := f.open(); err != nil {
		return nil, err
	}
	return newGiver(wire.WireGuard, config.GiveConfig, f, thisHost{})
}

type wireguardFar struct {
	session netip.AddrPort
	device  wireguard.Config
	log     *slog.Logger

	*wireguard.Device // nil: its interface was removed and could not be created again
	shared            *nft.Kept
	narrow            map[netip.Addr]int // tunnel addresses with an MTU of their own
}

// open starts the device, replacing leftovers of an agent that was killed.
func (f *wireguardFar) open() (err error) {
	if err := netstate.RemoveTunnel(wireguardInterface); err != nil {
		return err
	}
	device, err := wireguard.Open(f.device)
	if err != nil {
		return err
	}
	shared, err := wireguard.SharePort(f.session, device.ListenPort())
	if err != nil {
		return errors.Join(err, device.Close())
	}
	f.Device, f.shared, f.narrow = device, shared, make(map[netip.Addr]int)
	return nil
}

// holder identifies a host by its key, so each host of a member has a tunnel.
func (f *wireguardFar) holder(peer session.Peer, req wire.TunnelRequest) (holder, bool) {
	ok := len(req.PublicKey) == 32 && [32]byte(req.PublicKey) != [32]byte{} && (f.Device == nil || [32]byte(req.PublicKey) != f.PublicKey())
	return holder{member: peer.Name, key: string(req.PublicKey)}, ok
}

// admit grants no port, because the member uses the one at which it reaches the session.
func (f *wireguardFar) admit(h holder, addrs []netip.Prefix, g *wire.TunnelGrant) error {
	if f.Device == nil {
		return wireguard.ErrGone
	}
	allowed := make([]netip.Prefix, len(addrs))
	for i, p := range addrs {
		allowed[i] = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	}
	if err := f.SetPeer(wireguard.Peer{PublicKey: [32]byte([]byte(h.key)), Allowed: allowed}); err != nil {
		return err
	}
	public := f.PublicKey()
	g.PublicKey = public[:]
	return nil
}

func (f *wireguardFar) expel(h holder) error {
	if f.Device == nil {
		return nil
	}
	return f.RemovePeer([32]byte([]byte(h.key)))
}

func (f *wireguardFar) tend(_ time.Time, held []held) (anew bool, err error) {
	var peers []wireguard.PeerState
	if f.Device != nil {
		peers, err = f.Peers()
	}
	if f.Device == nil || errors.Is(err, wireguard.ErrGone) {
		f.log.Warn("a tunnel's interface was removed by another program and is created again", "interface", wireguardInterface)
		if err := errors.Join(f.close(), f.open()); err != nil {
			return false, err
		}
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, f.follow(peers, held)
}

func (f *wireguardFar) removed() <-chan struct{} {
	if f.Device == nil {
		return nil
	}
	return f.shared.Removed()
}

// checkRules restores the rules by which WireGuard shares the sessions' port.
func (f *wireguardFar) checkRules() error {
	if f.Device == nil {
		return nil
	}
	restored, err := f.shared.Check()
	if restored {
		f.log.Warn("the rules by which WireGuard shares the session's port were removed by another program and have been restored", "table", wireguardInterface)
	}
	return err
}

// follow limits the packet size to members whose path has a smaller MTU than the interface.
func (f *wireguardFar) follow(peers []wireguard.PeerState, held []held) error {
	endpoints := make(map[string]netip.Addr, len(peers))
	for _, p := range peers {
		endpoints[string(p.PublicKey[:])] = p.Endpoint.Addr()
	}
	var errs []error
	others := maps.Clone(f.narrow) // entries of members that are gone
	for _, h := range held {
		addrs := h.addrs()
		for _, a := range addrs {
			delete(others, a)
		}
		at := endpoints[h.key]
		if !at.IsValid() {
			continue // it has not sent a packet yet
		}
		outer, err := netstate.PathMTU(at)
		if err != nil {
			continue // there is no route to it now
		}
		mtu := max(minMTU, wireguard.InnerMTU(outer, at, f.device.MTU))
		if mtu == f.device.MTU {
			mtu = 0
		}
		for _, a := range addrs {
			errs = append(errs, f.bound(a, mtu))
		}
	}
	for a := range others {
		delete(f.narrow, a) // its route is gone
	}
	return errors.Join(errs...)
}

// bound limits the packets to an address to an MTU. If mtu is 0, the interface's MTU applies.
func (f *wireguardFar) bound(a netip.Addr, mtu int) error {
	if f.narrow[a] == mtu {
		return nil
	}
	if err := (thisHost{}).setPeer(wireguardInterface, a, mtu); err != nil {
		return fmt.Errorf("limit the size of packets to a member: %w", err)
	}
	if f.narrow[a] = mtu; mtu == 0 {
		delete(f.narrow, a)
	}
	return nil
}

func (f *wireguardFar) peerMTU(a netip.Addr) int { return f.narrow[a] }
func (f *wireguardFar) problem() error           { return nil }
func (f *wireguardFar) iface() string            { return wireguardInterface }
func (f *wireguardFar) mtu() int                 { return f.device.MTU }

func (f *wireguardFar) close() error {
	if f.Device == nil {
		return nil
	}
	device := f.Device
	f.Device = nil
	return errors.Join(f.shared.Close(), device.Close())
}
