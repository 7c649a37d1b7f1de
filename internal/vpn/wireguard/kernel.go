package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// kernel is the kernel's WireGuard.
type kernel struct {
	client *wgctrl.Client
	name   string
}

// openKernel fails with errors.ErrUnsupported if the kernel has no WireGuard.
func openKernel(c Config) (engine, *netstate.TunnelLink, error) {
	link, err := netstate.AddWireGuard(c.Interface, c.MTU)
	switch {
	case errors.Is(err, unix.EEXIST):
		return nil, nil, inUseError(c.Interface, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, nil, &UnavailableError{Fix: "run as root or with CAP_NET_ADMIN", Err: err}
	case err != nil:
		return nil, nil, err
	}
	k := &kernel{name: c.Interface}
	if err := k.start(c, link); err != nil {
		err = errors.Join(err, k.close(), link.Remove())
		link.Close()
		return nil, nil, err
	}
	return k, link, nil
}

func (k *kernel) start(c Config, link *netstate.TunnelLink) (err error) {
	if k.client, err = wgctrl.New(); err != nil {
		return fmt.Errorf("open the kernel's WireGuard: %w", err)
	}
	private := wgtypes.Key(c.PrivateKey)
	if err := k.configure(wgtypes.Config{PrivateKey: &private, ListenPort: &c.ListenPort}); err != nil {
		return err
	}
	if err := link.Up(); err != nil { // the socket is opened only now
		return portError(c.ListenPort, err)
	}
	return nil
}

func (k *kernel) kind() string { return "kernel" }

func (k *kernel) listenPort() (int, error) {
	d, err := k.device()
	if err != nil {
		return 0, err
	}
	return d.ListenPort, nil
}

func (k *kernel) set(c change) error {
	peer := wgtypes.PeerConfig{PublicKey: c.PublicKey, PersistentKeepaliveInterval: &c.Keepalive, ReplaceAllowedIPs: c.replaceAllowed}
	for _, p := range c.Allowed {
		peer.AllowedIPs = append(peer.AllowedIPs, net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
	}
	if !c.move {
		return k.configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{peer}})
	}
	// Turning it off and on again sends a keepalive to the new endpoint at once.
	off := time.Duration(0)
	first := wgtypes.PeerConfig{PublicKey: c.PublicKey, Endpoint: net.UDPAddrFromAddrPort(c.Endpoint), PersistentKeepaliveInterval: &off}
	return k.configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{first, peer}})
}

func (k *kernel) remove(key [32]byte) error {
	return k.configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: key, Remove: true}}})
}

func (k *kernel) configure(c wgtypes.Config) error {
	err := k.client.ConfigureDevice(k.name, c)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrGone
	}
	if err != nil {
		return fmt.Errorf("configure the kernel's WireGuard: %w", err)
	}
	return nil
}

func (k *kernel) peers() ([]PeerState, error) {
	d, err := k.device()
	if err != nil {
		return nil, err
	}
	peers := make([]PeerState, 0, len(d.Peers))
	for _, p := range d.Peers {
		peers = append(peers, peerState(p))
	}
	return peers, nil
}

func (k *kernel) device() (*wgtypes.Device, error) {
	d, err := k.client.Device(k.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("ask the kernel's WireGuard: %w", err)
	}
	return d, nil
}

func peerState(p wgtypes.Peer) PeerState {
	s := PeerState{
		Peer:     Peer{PublicKey: p.PublicKey, Keepalive: p.PersistentKeepaliveInterval},
		Received: uint64(p.ReceiveBytes), Sent: uint64(p.TransmitBytes),
	}
	if p.Endpoint != nil {
		s.Endpoint = p.Endpoint.AddrPort()
		s.Endpoint = netip.AddrPortFrom(s.Endpoint.Addr().Unmap(), s.Endpoint.Port())
	}
	// The kernel's "never" is the beginning of the epoch.
	if !p.LastHandshakeTime.IsZero() && p.LastHandshakeTime.Unix() != 0 {
		s.LastHandshake = p.LastHandshakeTime
	}
	for _, n := range p.AllowedIPs {
		addr, _ := netip.AddrFromSlice(n.IP)
		ones, _ := n.Mask.Size()
		s.Allowed = append(s.Allowed, netip.PrefixFrom(addr.Unmap(), ones))
	}
	return s
}

func (k *kernel) mtuIs(int) {} // it reads the interface's MTU itself

func (k *kernel) close() error {
	if k.client == nil {
		return nil
	}
	return k.client.Close()
}
