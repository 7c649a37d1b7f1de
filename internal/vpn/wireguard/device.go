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

// Config is what a device is made of.
type Config struct {
	Interface      string // begins with "dcol", by which netstate.CleanUpTunnels knows it
	PrivateKey     [32]byte
	ListenPort     int  // UDP; 0: any
	MTU            int  // bytes
	ForceUserspace bool // the embedded WireGuard even if the kernel has one
	Log            *slog.Logger
}

// Peer is the other end of a tunnel.
type Peer struct {
	PublicKey    [32]byte
	PresharedKey [32]byte       // zero: none
	Endpoint     netip.AddrPort // invalid: where the peer's packets come from
	Allowed      []netip.Prefix // where packets to and from the peer may go to and come from
	// Keepalive is how long the tunnel is silent at most, in whole seconds; 0: any time. An end behind
	// NAT needs one to be reached. An end that has one begins the handshake by itself.
	Keepalive time.Duration
}

// PeerState is how a peer stands.
type PeerState struct {
	Peer
	LastHandshake  time.Time // zero: never
	Received, Sent uint64    // bytes of WireGuard messages
}

// rejectAfter is REJECT-AFTER-TIME of the WireGuard paper, section 6.1: an older session passes
// nothing on. Ends that hear each other make a new one every two minutes.
const rejectAfter = 180 * time.Second

// Alive tells whether there is a session to send by.
func (s PeerState) Alive(now time.Time) bool {
	return !s.LastHandshake.IsZero() && now.Sub(s.LastHandshake) < rejectAfter
}

// ErrGone says that somebody has removed the interface of a device. It has to be closed, and opened
// anew.
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

// engine is one WireGuard implementation at work on one interface.
type engine interface {
	kind() string
	listenPort() (int, error)
	set(change) error
	remove(key [32]byte) error
	peers() ([]PeerState, error)
	mtuIs(mtu int)
	close() error
}

// change is what to do about a peer.
type change struct {
	Peer
	replaceAllowed bool // drop other allowed prefixes that the peer has had
	move           bool // the endpoint is a new one
}

// Open makes an interface, brings it up and begins to listen. It fails with *UnavailableError where
// neither WireGuard can work.
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
	public, err := publicKey(c.PrivateKey)
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
		return errors.New("the name of an interface of ours begins with dcol")
	case c.ListenPort < 0 || c.ListenPort > 1<<16-1:
		return fmt.Errorf("%d is no UDP port", c.ListenPort)
	case c.PrivateKey == [32]byte{}:
		return errors.New("there is no private key")
	}
	return nil
}

// Kind is "kernel" or "userspace".
func (d *Device) Kind() string { return d.engine.kind() }

// ListenPort is the UDP port.
func (d *Device) ListenPort() int { return d.port }

// PublicKey is what peers know the device by.
func (d *Device) PublicKey() [32]byte { return d.public }

// SetPeer adds a peer, or changes it; its session goes on. An endpoint is set when it is another one
// than last time, so that what the peer's own packets have told since stands; the peer hears of it
// at once if there is a keepalive. Prefixes that another peer was allowed are this one's now.
func (d *Device) SetPeer(p Peer) error {
	if p.Keepalive < 0 || p.Keepalive > (1<<16-1)*time.Second || p.Keepalive%time.Second != 0 {
		return fmt.Errorf("set WireGuard peer: a keepalive of %v is not in whole seconds, 65535 at most", p.Keepalive)
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

// RemovePeer ends a peer's session and forgets it. It may be unknown.
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

// Peers tells how all peers stand, in no order. It is ErrGone once the interface is.
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

// SetMTU sets the interface's MTU. netstate.SetTunnel alone is not enough, as the embedded WireGuard
// pads packets up to the MTU it knows.
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
