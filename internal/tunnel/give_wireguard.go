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

// outerMTU is what the waypoint expects of the paths to its members; each member
// takes less where it knows better.
const outerMTU = 1500

// GiveWireGuardConfig is what the waypoint's WireGuard end needs.
type GiveWireGuardConfig struct {
	GiveConfig
	Key     [32]byte       // private: the same one after a restart lets members' tunnels go on
	Session netip.AddrPort // where sessions are listened for, UDP; no address: everywhere
}

// GiveWireGuard opens the waypoint's WireGuard end, at the session's port.
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

	*wireguard.Device // nil: somebody has removed its interface, and it could not be made anew
	shared            *nft.Kept
	looked            time.Time          // when the sharing was last looked at
	narrow            map[netip.Addr]int // addresses in the tunnel with an MTU of their own
}

// open begins, in place of what an agent that was killed has left.
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

// holder: each host of a member has a key of its own, and so a tunnel.
func (f *wireguardFar) holder(peer session.Peer, req wire.TunnelRequest) (holder, bool) {
	ok := len(req.PublicKey) == 32 && [32]byte(req.PublicKey) != [32]byte{} && (f.Device == nil || [32]byte(req.PublicKey) != f.PublicKey())
	return holder{member: peer.Name, key: string(req.PublicKey)}, ok
}

// admit grants no port: it is that at which the member reaches the session.
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

func (f *wireguardFar) tend(now time.Time, held []held) (anew bool, err error) {
	var peers []wireguard.PeerState
	if f.Device != nil {
		peers, err = f.Peers()
	}
	if f.Device == nil || errors.Is(err, wireguard.ErrGone) {
		f.log.Warn("somebody has removed a tunnel's interface; it is made anew", "interface", wireguardInterface)
		if err := errors.Join(f.close(), f.open()); err != nil {
			return false, err
		}
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if now.Sub(f.looked) >= tablesEvery {
		f.looked = now
		restored, err := f.shared.Check()
		if err != nil {
			return false, err
		}
		if restored {
			f.log.Warn("somebody had removed the rules by which WireGuard shares the session's port; they are back", "table", wireguardInterface)
		}
	}
	return false, f.follow(peers, held)
}

// follow bounds packets to members whose path bears less than the interface does.
func (f *wireguardFar) follow(peers []wireguard.PeerState, held []held) error {
	endpoints := make(map[string]netip.Addr, len(peers))
	for _, p := range peers {
		endpoints[string(p.PublicKey[:])] = p.Endpoint.Addr()
	}
	var errs []error
	others := maps.Clone(f.narrow) // of those that have gone
	for _, h := range held {
		addrs := h.addrs()
		for _, a := range addrs {
			delete(others, a)
		}
		at := endpoints[h.key]
		if !at.IsValid() {
			continue // it was not heard of yet
		}
		outer, err := netstate.PathMTU(at)
		if err != nil {
			continue // there is no way to it now, of whatever size
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

// bound gives one address an MTU of its own; 0: that of the interface.
func (f *wireguardFar) bound(a netip.Addr, mtu int) error {
	if f.narrow[a] == mtu {
		return nil
	}
	if err := (thisHost{}).setPeer(wireguardInterface, a, mtu); err != nil {
		return fmt.Errorf("bound packets to a member: %w", err)
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
