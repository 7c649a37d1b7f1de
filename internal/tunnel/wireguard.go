package tunnel

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

// keepalive keeps a NAT's mapping alive, as WireGuard's own documentation advises,
// and has the handshake made before the first subflow needs it.
const keepalive = 25 * time.Second

// NewWireGuard keeps a WireGuard tunnel to one waypoint on an interface of its own.
func NewWireGuard(iface string, leads []Lead, tell func(Standing), log *slog.Logger) (*Keeper, error) {
	private, public, err := wireguard.NewKey()
	if err != nil {
		return nil, err
	}
	e := &wireguardEnd{route: route{iface: iface}, private: private, public: public, log: log}
	return newKeeper(path.WireGuard, leads, e, tell, log), nil
}

// wireguardEnd is the client's end of a WireGuard tunnel.
type wireguardEnd struct {
	route
	private, public [32]byte
	device          *wireguard.Device // nil: not set up
	peer            wireguard.Peer
	log             *slog.Logger
}

func (e *wireguardEnd) request() (wire.TunnelRequest, error) {
	avoid, err := e.avoid()
	return wire.TunnelRequest{Kind: wire.WireGuard, PublicKey: e.public[:], Avoid: avoid}, err
}

func (e *wireguardEnd) set(at netip.Addr, g wire.TunnelGrant) error {
	if len(g.PublicKey) != len(e.public) || g.Port == 0 {
		return fmt.Errorf("the waypoint's grant lacks its WireGuard key or port")
	}
	left := func(path int, remote netip.Addr) int { return wireguard.InnerMTU(path, remote, cmp.Or(int(g.MTU), path)) }
	mtu, err := innerMTU(at, left, g.MTU)
	if err != nil {
		return err
	}
	if e.device == nil {
		e.device, err = wireguard.Open(wireguard.Config{Interface: e.iface, PrivateKey: e.private, MTU: mtu, Log: e.log})
		if err != nil {
			return err
		}
	}
	peer := wireguard.Peer{
		PublicKey: [32]byte(g.PublicKey), Endpoint: netip.AddrPortFrom(at, g.Port),
		Allowed: []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, Keepalive: keepalive,
	}
	// Two peers cannot have the same allowed addresses.
	if e.peer.PublicKey != peer.PublicKey && e.peer.Endpoint.IsValid() {
		if err := e.device.RemovePeer(e.peer.PublicKey); err != nil {
			return err
		}
	}
	if err := e.device.SetPeer(peer); err != nil {
		return err
	}
	e.peer = peer
	return e.lay(g.Addresses, mtu)
}

func (e *wireguardEnd) tunnels() ([]detour.Tunnel, string) {
	peers, err := e.device.Peers()
	if err != nil {
		return nil, err.Error()
	}
	for _, p := range peers {
		if p.PublicKey == e.peer.PublicKey && p.Alive(time.Now()) {
			return e.open(path.WireGuard), ""
		}
	}
	return nil, fmt.Sprintf("no WireGuard handshake with %v/udp: does that port reach the waypoint?", e.peer.Endpoint)
}

func (e *wireguardEnd) drop() error {
	if e.device == nil {
		return nil
	}
	device := e.device
	e.device, e.peer = nil, wireguard.Peer{}
	return e.clear(device.Close())
}

func (e *wireguardEnd) lasting() bool { return true }
