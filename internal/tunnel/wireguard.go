package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

const (
	// keepalive keeps a NAT's mapping alive, as WireGuard's documentation recommends, and triggers
	// the handshake before the first subflow needs it.
	keepalive = 25 * time.Second
	// handshakeGrace is the time for which a tunnel still counts as working during another handshake. A
	// lost handshake message is sent again after 5 s.
	handshakeGrace = 6 * time.Second
	// keyTrial is the time for which an earlier agent's key is tried. Several handshakes take less.
	keyTrial = 20 * time.Second
)

// NewWireGuard returns a Keeper of a WireGuard tunnel to one waypoint, on an interface of its own,
// with addresses from the ranges. private is the key of this host's end. If an earlier agent had the
// same one, the waypoint assigns the same addresses, and connections in its tunnel go on in this one.
func NewWireGuard(iface string, private [32]byte, ranges []netip.Prefix, leads []Lead, tell func(Standing), log *slog.Logger) (*Keeper, error) {
	public, err := wireguard.PublicKey(private)
	if err != nil {
		return nil, err
	}
	e := &wireguardEnd{route: route{iface: iface, ranges: ranges}, private: private, public: public, untried: true, log: log}
	return newKeeper(path.WireGuard, leads, e, tell, log), nil
}

// wireguardEnd implements end for WireGuard.
type wireguardEnd struct {
	route
	private, public [32]byte
	untried         bool // no handshake with this key was seen, so another key may be used
	log             *slog.Logger

	port   uint16            // of the device, also before it is open; 0: any
	device *wireguard.Device // nil: not open
	opened time.Time         // when the device was opened
	peer   wireguard.Peer
	to     place
	grant  wire.TunnelGrant
	mtu    int       // of the interface, bytes
	grace  time.Time // until then a handshake may be in progress
}

func (e *wireguardEnd) request() (wire.TunnelRequest, error) {
	if err := e.renewKey(time.Now()); err != nil {
		return wire.TunnelRequest{}, err
	}
	avoid, err := e.avoid()
	if e.device == nil {
		e.port = freePort()
	}
	return wire.TunnelRequest{Kind: wire.WireGuard, PublicKey: e.public[:], Avoid: avoid, Port: e.port}, err
}

// renewKey replaces an earlier agent's key if there was no handshake with it. The waypoint may refuse handshakes with
// that key: if this host's clock was set back, they look like replays.
func (e *wireguardEnd) renewKey(now time.Time) (err error) {
	if !e.untried || e.device == nil || now.Sub(e.opened) < keyTrial || e.alive() {
		return nil
	}
	e.untried = false
	e.log.Info("a WireGuard tunnel gets another key, because there was no handshake", "interface", e.iface)
	if err := e.drop(); err != nil {
		return err
	}
	e.private, e.public, err = wireguard.NewKey()
	return err
}

// freePort returns a UDP port that is free now, which the waypoint must know before the device
// exists. It returns 0 if there is none.
func freePort() uint16 {
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		return 0
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

func (e *wireguardEnd) set(ctx context.Context, to place, g wire.TunnelGrant) error {
	if len(g.PublicKey) != len(e.public) || [32]byte(g.PublicKey) == e.public {
		return errors.New("the waypoint's grant lacks its WireGuard key")
	}
	// Without a port of its own, WireGuard shares the session's port, as seen from our side of a
	// NAT.
	endpoint := netip.AddrPortFrom(to.at.Addr(), cmp.Or(g.Port, to.at.Port()))
	probe(ctx, endpoint, to.rtt)
	mtu, err := innerMTU(to.at.Addr(), func(path int) int { return left(path, to, g) })
	if err != nil {
		return err
	}
	if err := e.accept(g.Addresses); err != nil {
		return err
	}
	e.to, e.grant = to, g
	if err := e.open(mtu); err != nil {
		return err
	}
	peer := wireguard.Peer{
		PublicKey: [32]byte(g.PublicKey), Endpoint: endpoint,
		Allowed: []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}, Keepalive: keepalive,
	}
	if err := e.meet(peer, to.fresh); err != nil {
		return err
	}
	return e.lay(mtu)
}

// left returns the part of a path's MTU that is left for packets in the tunnel, in bytes.
func left(path int, to place, g wire.TunnelGrant) int {
	return wireguard.InnerMTU(path, to.at.Addr(), cmp.Or(int(g.MTU), path))
}

func (e *wireguardEnd) left(path int) int { return left(path, e.to, e.grant) }

// open opens a device with this MTU unless there is one.
func (e *wireguardEnd) open(mtu int) error {
	if e.device != nil {
		return e.resize(mtu)
	}
	// An agent that was killed may have left an interface.
	if err := netstate.RemoveTunnel(e.iface); err != nil {
		return err
	}
	config := wireguard.Config{Interface: e.iface, PrivateKey: e.private, ListenPort: int(e.port), MTU: mtu, Log: e.log}
	device, err := wireguard.Open(config)
	if errors.Is(err, syscall.EADDRINUSE) { // another program took the port meanwhile
		config.ListenPort = 0
		device, err = wireguard.Open(config)
	}
	if err != nil {
		return err
	}
	e.device, e.mtu, e.port, e.opened = device, mtu, uint16(device.ListenPort()), time.Now()
	return nil
}

func (e *wireguardEnd) resize(mtu int) error {
	if mtu == e.mtu {
		return nil
	}
	if err := e.device.SetMTU(mtu); err != nil {
		return err
	}
	e.mtu = mtu
	return nil
}

// meet makes the waypoint the device's only peer. If fresh, the peer is removed first: a waypoint
// that restarted has lost our WireGuard session, which WireGuard would notice only after 15 s or
// more. A new peer starts a handshake at once.
func (e *wireguardEnd) meet(peer wireguard.Peer, fresh bool) error {
	if e.peer.Endpoint.IsValid() && (fresh || e.peer.PublicKey != peer.PublicKey) {
		if e.alive() {
			e.grace = time.Now().Add(handshakeGrace)
		}
		if err := e.device.RemovePeer(e.peer.PublicKey); err != nil {
			return err
		}
	}
	if err := e.device.SetPeer(peer); err != nil {
		return err
	}
	e.peer = peer
	return nil
}

func (e *wireguardEnd) alive() bool {
	alive, err := e.session()
	return err == nil && alive
}

// session reports whether there is a WireGuard session with the waypoint.
func (e *wireguardEnd) session() (bool, error) {
	peers, err := e.device.Peers()
	for _, p := range peers {
		if p.PublicKey == e.peer.PublicKey && p.Alive(time.Now()) {
			e.untried = false
			return true, nil
		}
	}
	return false, err
}

func (e *wireguardEnd) tunnels(ctx context.Context) ([]detour.Tunnel, string) {
	alive, err := e.look(ctx)
	switch {
	case err != nil:
		return nil, err.Error()
	case !alive && time.Now().After(e.grace):
		return nil, fmt.Sprintf("no WireGuard handshake with %v/udp: does that port reach the waypoint?", e.peer.Endpoint)
	}
	return e.ready(path.WireGuard), ""
}

// look repairs what others have changed, and adapts the tunnel to the path.
func (e *wireguardEnd) look(ctx context.Context) (alive bool, err error) {
	if e.device != nil {
		alive, err = e.session()
		if err == nil {
			return alive, e.follow(ctx)
		}
		if !errors.Is(err, wireguard.ErrGone) {
			return false, err
		}
		e.log.Warn("a tunnel's interface was removed by another program and is created again", "interface", e.iface)
		if err := e.drop(); err != nil {
			return false, err
		}
	}
	return false, e.set(ctx, e.to, e.grant)
}

// follow sets the interface's MTU to what the path now allows.
func (e *wireguardEnd) follow(ctx context.Context) error {
	outer, err := netstate.PathMTU(e.to.at.Addr())
	if err != nil {
		return nil //nolint:nilerr // there is no route to the waypoint now
	}
	if e.left(outer) == e.mtu {
		return nil
	}
	if e.left(outer) > e.mtu {
		probe(ctx, e.peer.Endpoint, e.to.rtt) // the kernel may only have forgotten the path's MTU
	}
	mtu, err := innerMTU(e.to.at.Addr(), e.left)
	if err != nil {
		return err
	}
	return e.resize(mtu)
}

func (e *wireguardEnd) drop() error {
	if e.device == nil {
		return nil
	}
	device := e.device
	e.device, e.peer, e.grace = nil, wireguard.Peer{}, time.Time{}
	return e.clear(device.Close())
}

func (e *wireguardEnd) lasting() bool { return true }
