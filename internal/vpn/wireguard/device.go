package wireguard

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// Config configures a device.
type Config struct {
	Interface      string // begins with "dcol", which netstate.CleanUpTunnels looks for
	PrivateKey     [32]byte
	ListenPort     int  // UDP; 0: any
	MTU            int  // bytes
	ForceUserspace bool // use the embedded WireGuard even if the kernel has one
	Log            *slog.Logger
}

// Peer is the other end of a tunnel.
type Peer struct {
	PublicKey [32]byte
	Endpoint  netip.AddrPort // invalid: learned from the peer's packets
	Allowed   []netip.Prefix // allowed source and destination prefixes of the peer's packets
	// Keepalive is the longest silence in the tunnel, in whole seconds. 0 means no limit. An end
	// behind a NAT needs it to be reachable. It also makes an end start the handshake by itself.
	Keepalive time.Duration
}

// PeerState is the state of a peer.
type PeerState struct {
	Peer
	LastHandshake  time.Time // zero: never
	Received, Sent uint64    // bytes of WireGuard messages
}

// rejectAfter is REJECT-AFTER-TIME of the WireGuard paper, section 6.1: an older session carries no
// packets. Ends that can reach each other make a new one every two minutes.
const rejectAfter = 180 * time.Second

// Alive reports whether there is a session that can send.
func (s PeerState) Alive(now time.Time) bool {
	return !s.LastHandshake.IsZero() && now.Sub(s.LastHandshake) < rejectAfter
}

// ErrGone means that a device's interface was removed. The device must be closed and opened again.
var ErrGone = errors.New("the WireGuard interface has been removed")

// Device is a WireGuard interface.
type Device struct {
	engine engine
	link   *netstate.TunnelLink
	public [32]byte
	port   int

	mu     sync.Mutex
	peers  map[[32]byte]Peer // as last set
	closed bool
}

// engine is a WireGuard implementation running on one interface.
type engine interface {
	kind() string
	listenPort() (int, error)
	set(change) error
	remove(key [32]byte) error
	peers() ([]PeerState, error)
	mtuIs(mtu int)
	close() error
}

// change is a modification of a peer.
type change struct {
	Peer
	replaceAllowed bool // remove the peer's other allowed prefixes
	move           bool // the endpoint has changed
}

// Open creates an interface, brings it up and starts to listen. It fails with *UnavailableError if
// neither the kernel's nor the embedded WireGuard works.
func Open(c Config) (*Device, error) {
	d, err := c.open()
	if err != nil {
		return nil, fmt.Errorf("open WireGuard interface %s: %w", c.Interface, err)
	}
	return d, nil
}

func (c Config) open() (*Device, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	public, err := PublicKey(c.PrivateKey)
	if err != nil {
		return nil, err
	}
	d := &Device{public: public, peers: make(map[[32]byte]Peer)}
	if !c.ForceUserspace {
		d.engine, d.link, err = openKernel(c)
	}
	if c.ForceUserspace || errors.Is(err, errors.ErrUnsupported) {
		d.engine, d.link, err = openUserspace(c, err)
	}
	if err != nil {
		return nil, err
	}
	if d.port, err = d.engine.listenPort(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	c.Log.Debug("WireGuard interface is open", "interface", c.Interface, "kind", d.engine.kind(), "port", d.port)
	return d, nil
}

func (c Config) check() error {
	switch {
	case !strings.HasPrefix(c.Interface, "dcol"):
		return errors.New("the interface's name must begin with dcol")
	case c.ListenPort < 0 || c.ListenPort > 1<<16-1:
		return fmt.Errorf("%d is not a UDP port", c.ListenPort)
	case c.PrivateKey == [32]byte{}:
		return errors.New("the private key is missing")
	}
	return nil
}

// Kind returns "kernel" or "userspace".
func (d *Device) Kind() string { return d.engine.kind() }

// ListenPort returns the UDP port.
func (d *Device) ListenPort() int { return d.port }

// PublicKey returns the device's public key.
func (d *Device) PublicKey() [32]byte { return d.public }

// SetPeer adds or changes a peer without ending its session. An endpoint is set only if it differs
// from the last one set, so that an endpoint learned from the peer's packets is kept. With a
// keepalive, the peer learns of a change at once. Prefixes of other peers are moved to this one.
func (d *Device) SetPeer(p Peer) error {
	if p.Keepalive < 0 || p.Keepalive > (1<<16-1)*time.Second || p.Keepalive%time.Second != 0 {
		return fmt.Errorf("set WireGuard peer: the keepalive must be whole seconds up to 65535, not %v", p.Keepalive)
	}
	p.Allowed = slices.Clone(p.Allowed)
	p.Endpoint = netip.AddrPortFrom(p.Endpoint.Addr().Unmap(), p.Endpoint.Port())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrGone
	}
	last, known := d.peers[p.PublicKey]
	c := change{Peer: p, move: p.Endpoint.IsValid() && p.Endpoint != last.Endpoint}
	c.replaceAllowed = known && slices.ContainsFunc(last.Allowed, func(a netip.Prefix) bool { return !slices.Contains(p.Allowed, a) })
	if err := d.engine.set(c); err != nil {
		return fmt.Errorf("set WireGuard peer: %w", err)
	}
	if !p.Endpoint.IsValid() {
		p.Endpoint = last.Endpoint
	}
	d.peers[p.PublicKey] = p
	return nil
}

// RemovePeer ends a peer's session and removes it. An unknown peer is no error.
func (d *Device) RemovePeer(key [32]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.peers[key]; !known || d.closed {
		return nil
	}
	if err := d.engine.remove(key); err != nil {
		return fmt.Errorf("remove WireGuard peer: %w", err)
	}
	delete(d.peers, key)
	return nil
}

// Peers returns the states of all peers in no particular order. The error is ErrGone if the
// interface was removed.
func (d *Device) Peers() ([]PeerState, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrGone
	}
	peers, err := d.engine.peers()
	if err != nil {
		return nil, fmt.Errorf("list WireGuard peers: %w", err)
	}
	return peers, nil
}

// SetMTU sets the interface's MTU. netstate.SetTunnel alone is not enough, because the embedded
// WireGuard pads packets up to the MTU it was given.
func (d *Device) SetMTU(mtu int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrGone
	}
	if err := d.link.SetMTU(mtu); err != nil {
		return err
	}
	d.engine.mtuIs(mtu)
	return nil
}

// Close ends all sessions and removes the interface. Further calls do nothing.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	err := errors.Join(d.engine.close(), d.link.Remove())
	d.link.Close()
	return err
}
