package tunnel

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
	"github.com/detour-collective/dcol/internal/waypoint"
)

// wireguardInterface is the waypoint's, of which it has one.
const wireguardInterface = "dcolwg"

// outerMTU is what the waypoint expects of the paths to its members; each member
// takes less where it knows better.
const outerMTU = 1500

// GiveWireGuard opens the waypoint's WireGuard end. key is its private key: the
// same one after a restart lets members' tunnels go on.
func GiveWireGuard(name string, key [32]byte, port int, lease time.Duration, gate Gate, log *slog.Logger) (*Giver, error) {
	// An IPv6 outer header is the longer one.
	mtu := outerMTU - wireguard.Overhead(netip.IPv6Unspecified())
	device, err := wireguard.Open(wireguard.Config{Interface: wireguardInterface, PrivateKey: key, ListenPort: port, MTU: mtu, Log: log})
	if err != nil {
		return nil, err
	}
	return newGiver(name, wire.WireGuard, lease, gate, &wireguardFar{device: device, bytes: mtu}, log)
}

type wireguardFar struct {
	device *wireguard.Device
	bytes  int
}

// holder: each host of a member has a key of its own, and so a tunnel.
func (f *wireguardFar) holder(peer waypoint.Peer, req wire.TunnelRequest) (holder, bool) {
	return holder{member: peer.Name, key: string(req.PublicKey)}, len(req.PublicKey) == 32
}

func (f *wireguardFar) admit(h holder, addrs []netip.Prefix, g *wire.TunnelGrant) error {
	allowed := make([]netip.Prefix, len(addrs))
	for i, p := range addrs {
		allowed[i] = netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	}
	if err := f.device.SetPeer(wireguard.Peer{PublicKey: [32]byte([]byte(h.key)), Allowed: allowed}); err != nil {
		return err
	}
	public := f.device.PublicKey()
	g.PublicKey, g.Port = public[:], uint16(f.device.ListenPort())
	return nil
}

func (f *wireguardFar) expel(h holder) error { return f.device.RemovePeer([32]byte([]byte(h.key))) }
func (f *wireguardFar) iface() string        { return wireguardInterface }
func (f *wireguardFar) mtu() int             { return f.bytes }
func (f *wireguardFar) close() error         { return f.device.Close() }
