package tunnel

import (
	"context"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session"
	"github.com/detour-collective/dcol/internal/session/wire"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
)

// GiveOpenVPNConfig configures the waypoint's OpenVPN end.
type GiveOpenVPNConfig struct {
	GiveConfig
	Port  uint16
	Files openvpn.Files
	Dir   string // for openvpn's socket; not shared with others
}

// GiveOpenVPN starts the waypoint's OpenVPN end.
func GiveOpenVPN(ctx context.Context, config GiveOpenVPNConfig) (*Giver, error) {
	mtu := openvpn.MTU(outerMTU, netip.IPv6Unspecified())
	server, err := openvpn.StartServer(ctx, openvpn.ServerConfig{
		Interface: openvpnInterface, Port: config.Port, Files: config.Files, MTU: mtu, Dir: config.Dir, Log: config.Log,
	})
	if err != nil {
		return nil, err
	}
	f := &openvpnFar{server: server, port: config.Port, bytes: mtu}
	return newGiver(wire.OpenVPN, config.GiveConfig, f, thisHost{})
}

type openvpnFar struct {
	server *openvpn.Server
	port   uint16
	bytes  int
	looked time.Time // when the server was last tended
}

// holder identifies a member by its certificate's name, so each member has one tunnel.
func (f *openvpnFar) holder(peer session.Peer, _ wire.TunnelRequest) (holder, bool) {
	return holder{member: peer.Name}, true
}

func (f *openvpnFar) admit(h holder, addrs []netip.Prefix, g *wire.TunnelGrant) error {
	g.Port = f.port
	return f.server.Admit(h.member, addrs)
}

func (f *openvpnFar) expel(h holder) error { return f.server.Expel(h.member) }

// tend does not replace an interface that was removed.
func (f *openvpnFar) tend(now time.Time, _ []held) (anew bool, err error) {
	if now.Sub(f.looked) < tablesEvery {
		return false, nil
	}
	f.looked = now
	f.server.Tend()
	return false, nil
}

func (f *openvpnFar) removed() <-chan struct{} { return f.server.Removed() }
func (f *openvpnFar) checkRules() error        { return f.server.CheckGuard() }

func (f *openvpnFar) peerMTU(netip.Addr) int { return 0 }

func (f *openvpnFar) problem() error { return f.server.Problem() }
func (f *openvpnFar) iface() string  { return openvpnInterface }
func (f *openvpnFar) mtu() int       { return f.bytes }
func (f *openvpnFar) close() error   { return f.server.Stop() }
