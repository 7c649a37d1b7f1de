package tunnel

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// OpenVPNConfig is what the client's end of an OpenVPN tunnel needs.
type OpenVPNConfig struct {
	Interface string
	Waypoint  string        // the name that its certificate must say
	Files     openvpn.Files // this member's identity
	Dir       string        // for what openvpn is told and says; ours alone
	Log       *slog.Logger
}

// NewOpenVPN keeps an OpenVPN tunnel to one waypoint on an interface of its own.
func NewOpenVPN(config OpenVPNConfig, leads []Lead, tell func(Standing)) *Keeper {
	e := &openvpnEnd{config: config, route: route{iface: config.Interface}}
	return newKeeper(path.OpenVPN, leads, e, tell, config.Log)
}

// openvpnEnd is the client's end of an OpenVPN tunnel.
type openvpnEnd struct {
	route
	config  OpenVPNConfig
	client  *openvpn.Client // nil: not set up
	remote  netip.AddrPort
	bytes   int // of the interface's MTU
	granted []netip.Prefix
}

func (e *openvpnEnd) request() (wire.TunnelRequest, error) {
	// Before the waypoint is asked in vain.
	if _, _, err := openvpn.Find(); err != nil {
		return wire.TunnelRequest{}, err
	}
	avoid, err := e.avoid()
	return wire.TunnelRequest{Kind: wire.OpenVPN, Avoid: avoid}, err
}

func (e *openvpnEnd) set(at netip.Addr, g wire.TunnelGrant) error {
	if g.Port == 0 || len(g.Addresses) == 0 {
		return errors.New("the waypoint's grant lacks its OpenVPN port or an address")
	}
	mtu, err := innerMTU(at, openvpn.MTU, g.MTU)
	if err != nil {
		return err
	}
	remote := netip.AddrPortFrom(at, g.Port)
	if e.client != nil && mtu != e.bytes { // openvpn cannot change that while it runs
		if err := e.drop(); err != nil {
			return err
		}
	}
	e.bytes = mtu
	switch {
	case e.client == nil:
		e.client, err = openvpn.StartClient(context.Background(), openvpn.ClientConfig{
			Interface: e.iface, Remote: remote, ServerName: e.config.Waypoint,
			Files: e.config.Files, MTU: mtu, Dir: e.config.Dir, Log: e.config.Log,
		})
	case remote != e.remote:
		err = e.client.SetRemote(remote)
	}
	if err != nil {
		return err
	}
	e.remote, e.granted = remote, g.Addresses
	e.laid = netstate.Tunnel{}
	return nil
}

func (e *openvpnEnd) tunnels() ([]detour.Tunnel, string) {
	state := e.client.State()
	if state.Phase != openvpn.Connected {
		return nil, cmp.Or(state.Reason, "OpenVPN is "+string(state.Phase))
	}
	// Not before: an interface that comes up without its process may drop packets for
	// a second, until the kernel notices that somebody listens.
	if e.laid.Interface == "" {
		if err := e.lay(e.granted, e.bytes); err != nil {
			return nil, err.Error()
		}
	}
	return e.open(path.OpenVPN), ""
}

func (e *openvpnEnd) drop() error {
	if e.client == nil {
		return nil
	}
	e.client.Stop()
	e.client = nil
	return e.clear(nil)
}

func (e *openvpnEnd) lasting() bool { return true }
