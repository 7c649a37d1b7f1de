package tunnel

import (
	"context"
	"errors"
	"net/netip"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// host is what a Giver does to the host it runs on.
type host interface {
	// usedPrefixes lists the networks in use, but for those of an interface.
	usedPrefixes(except string) ([]netip.Prefix, error)
	// watch tells that addresses or routes have changed, until ctx ends.
	watch(ctx context.Context) (<-chan []netstate.Address, error)
	// guardOutput keeps the host's own traffic out of an interface.
	guardOutput(iface string) (guard, error)
	setTunnel(netstate.Tunnel) error
	removeTunnel(iface string) error
	// peers lists who is reached by an interface, each by a route of its own.
	peers(iface string) ([]netip.Addr, error)
	setPeer(iface string, peer netip.Addr, mtu int) error
	removePeer(iface string, peer netip.Addr) error
}

// guard is an nftables table that is kept; it is *nft.Kept.
type guard interface {
	Check() (restored bool, err error)
	Close() error
}

// thisHost is the one of the calling thread's network namespace.
type thisHost struct{}

func (thisHost) usedPrefixes(except string) ([]netip.Prefix, error) {
	return netstate.UsedPrefixes(except)
}

func (thisHost) watch(ctx context.Context) (<-chan []netstate.Address, error) {
	return netstate.WatchAddresses(ctx)
}

func (thisHost) guardOutput(iface string) (guard, error) { return openOutputGuard(iface) }

func (thisHost) setTunnel(t netstate.Tunnel) error { return unlessIPv6(netstate.SetTunnel(t)) }

func (thisHost) removeTunnel(iface string) error { return netstate.RemoveTunnel(iface) }

func (thisHost) peers(iface string) ([]netip.Addr, error) { return netstate.TunnelPeers(iface) }

func (thisHost) setPeer(iface string, peer netip.Addr, mtu int) error {
	return unlessIPv6(netstate.SetTunnelPeer(iface, peer, mtu))
}

func (thisHost) removePeer(iface string, peer netip.Addr) error {
	return netstate.RemoveTunnelPeer(iface, peer)
}

// unlessIPv6 makes nothing of an interface that cannot have IPv6: the tunnel's IPv4 works.
func unlessIPv6(err error) error {
	if errors.Is(err, netstate.ErrNoIPv6) {
		return nil
	}
	return err
}
