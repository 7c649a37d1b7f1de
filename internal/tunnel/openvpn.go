package tunnel

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// OpenVPNConfig configures the client's end of an OpenVPN tunnel.
type OpenVPNConfig struct {
	Interface string
	Ranges    []netip.Prefix // allowed ranges of an address in a tunnel
	Waypoint  string         // the name required in its certificate
	Files     openvpn.Files  // this member's identity
	Log       *slog.Logger
}

// NewOpenVPN returns a Keeper of an OpenVPN tunnel to one waypoint, on an interface of its own.
func NewOpenVPN(config OpenVPNConfig, leads []Lead, tell func(Standing)) *Keeper {
	e := &openvpnEnd{config: config, route: route{iface: config.Interface, ranges: config.Ranges}}
	return newKeeper(path.OpenVPN, leads, e, tell, config.Log)
}

// openvpnPatience is the time after which a client without a connection is restarted, because the waypoint may have
// restarted. By itself, openvpn tries again only after 12 s.
const openvpnPatience = time.Second

// openvpnEnd implements end for OpenVPN.
type openvpnEnd struct {
	route
	config OpenVPNConfig

	client *openvpn.Client // nil: not started
	remote netip.AddrPort
	mtu    int       // of the interface, bytes
	due    time.Time // when to check whether it is connected again; zero: never
}

func (e *openvpnEnd) request() (wire.TunnelRequest, error) {
	// Checked first, so that the waypoint is not asked in vain.
	if _, _, err := openvpn.Find(); err != nil {
		return wire.TunnelRequest{}, err
	}
	avoid, err := e.avoid()
	return wire.TunnelRequest{Kind: wire.OpenVPN, Avoid: avoid}, err
}

func (e *openvpnEnd) set(ctx context.Context, to place, g wire.TunnelGrant) error {
	if g.Port == 0 {
		return errors.New("the waypoint's grant lacks its OpenVPN port")
	}
	remote := netip.AddrPortFrom(to.at.Addr(), g.Port)
	probe(ctx, remote, to.rtt)
	mtu, err := innerMTU(remote.Addr(), func(path int) int {
		return min(openvpn.MTU(path, remote.Addr()), cmp.Or(int(g.MTU), path))
	})
	if err != nil {
		return err
	}
	if err := e.accept(g.Addresses); err != nil {
		return err
	}
	if e.client != nil && mtu != e.mtu { // openvpn cannot change it while running
		if err := e.drop(); err != nil {
			return err
		}
	}
	before := e.remote
	e.remote, e.mtu = remote, mtu
	e.laid = netstate.Tunnel{}
	switch {
	case e.client == nil:
		return e.start()
	case remote != before:
		e.client.Restart(remote)
	case to.fresh:
		e.due = time.Now().Add(openvpnPatience)
	}
	return nil
}

func (e *openvpnEnd) start() (err error) {
	e.client, err = openvpn.StartClient(context.Background(), openvpn.ClientConfig{
		Interface: e.iface, Remote: e.remote, ServerName: e.config.Waypoint,
		Files: e.config.Files, MTU: e.mtu, Log: e.config.Log,
	})
	return err
}

func (e *openvpnEnd) tunnels(context.Context) ([]detour.Tunnel, string) {
	if err := e.look(time.Now()); err != nil {
		return nil, err.Error()
	}
	state := e.client.State()
	if !state.Connected {
		return nil, cmp.Or(state.Reason, "OpenVPN is connecting")
	}
	// The routes are set up only now: if an interface is up without its process, it may drop packets for a second,
	// until the kernel notices the reader.
	if e.laid.Interface == "" {
		if err := e.lay(e.mtu); err != nil {
			return nil, err.Error()
		}
	}
	return e.ready(path.OpenVPN), ""
}

// look restarts a client that waits for its next try although the waypoint is available again.
func (e *openvpnEnd) look(now time.Time) error {
	if e.client == nil {
		return e.start()
	}
	if !e.due.IsZero() && !now.Before(e.due) {
		e.due = time.Time{}
		if !e.client.State().Connected {
			e.client.Restart(e.remote)
		}
	}
	return nil
}

func (e *openvpnEnd) drop() error {
	if e.client == nil {
		return nil
	}
	client := e.client
	e.client, e.due = nil, time.Time{}
	return e.clear(client.Stop())
}

func (e *openvpnEnd) lasting() bool { return true }
