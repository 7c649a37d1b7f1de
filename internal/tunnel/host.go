package tunnel

import (
	"errors"
	"net/netip"

	"github.com/detour-collective/dcol/internal/netstate"
)

// host is what a Giver does to the host it runs on.
type host interface {
	usedPrefixes() ([]netip.Prefix, error)
	setTunnel(netstate.Tunnel) error
	removeTunnel(iface string) error
}

// thisHost is the one of the calling thread's network namespace.
type thisHost struct{}

// usedPrefixes are those of others: what tunnels of ours have is ours to change.
func (thisHost) usedPrefixes() ([]netip.Prefix, error) {
	tunnels, err := ours()
	if err != nil {
		return nil, err
	}
	return netstate.UsedPrefixes(tunnels...)
}

func (thisHost) setTunnel(t netstate.Tunnel) error {
	err := netstate.SetTunnel(t)
	if errors.Is(err, netstate.ErrNoIPv6) {
		return nil // the tunnel's IPv4 works
	}
	return err
}

func (thisHost) removeTunnel(iface string) error { return netstate.RemoveTunnel(iface) }
