package tunnel

import (
	"context"
	"errors"
	"net/netip"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// host provides a Giver's operations on the host it runs on.
type host interface {
	// usedPrefixes lists the networks in use, without those of the interface except.
	usedPrefixes(except string) ([]netip.Prefix, error)
	// watch reports changes of addresses or routes until ctx ends.
	watch(ctx context.Context) (<-chan []netstate.Address, error)
	// guardOutput keeps the host's own traffic out of an interface.
	guardOutput(iface string) (guard, error)
	setTunnel(netstate.Tunnel) error
	removeTunnel(iface string) error
	// peers lists the addresses that have a route of their own into an interface.
	peers(iface string) ([]netip.Addr, error)
	setPeer(iface string, peer netip.Addr, mtu int) error
	removePeer(iface string, peer netip.Addr) error
}

// guard is an nftables table that is restored when it is removed. *nft.Kept implements it.
type guard interface {
	Check() (restored bool, err error)
	// Removed delivers something when Check should be called at once.
	Removed() <-chan struct{}
	Close() error
}

// thisHost implements host in the calling thread's network namespace.
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

// unlessIPv6 ignores the error of an interface that cannot have IPv6, because the tunnel's IPv4
// works.
func unlessIPv6(err error) error {
	if errors.Is(err, netstate.ErrNoIPv6) {
		return nil
	}
	return err
}
