package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Protocol is one that has ports.
type Protocol string

// The protocols.
const (
	UDP Protocol = "udp"
	TCP Protocol = "tcp"
)

// Want is a port of this host that is to be reachable from outside.
type Want struct {
	Protocol Protocol
	Port     uint16
}

func (w Want) String() string { return fmt.Sprintf("%d/%s", w.Port, w.Protocol) }

// Mapping is what a router has opened.
type Mapping struct {
	Want
	External netip.AddrPort // what leads to it
	Until    time.Time      // unless it is renewed; zero: for ever
}

// Network is where this host is.
type Network struct {
	Gateway netip.Addr // the router
	Own     netip.Addr // the address by which we are known to it
}

// router speaks one of the protocols to one gateway.
type router interface {
	String() string // the protocol's name
	// open opens a port, or renews that. The external port is the one proposed, if the router can.
	open(ctx context.Context, w Want, proposed uint16) (granted, error)
	close(ctx context.Context, w Want, external uint16) error
}

// granted is a router's yes.
type granted struct {
	external netip.AddrPort
	lifetime time.Duration // 0: for ever
	// epoch is how long the router remembers, in seconds by its own clock; only where timed.
	epoch uint32
	timed bool
}

// lifetime is what we ask for: how long a port stays open when the agent was killed, and how long a router
// may be away before the port is gone.
const lifetime = 10 * time.Minute

// maxLifetime bounds what a router may say.
const maxLifetime = 24 * time.Hour

// RefusedError is a router's no.
type RefusedError struct {
	By   string // the protocol
	Why  string
	Code int // the protocol's own
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the router refuses (%s, code %d): %s", e.By, e.Code, e.Why)
}

// ErrNoProtocol says that the gateway speaks none of the protocols.
var ErrNoProtocol = errors.New("the router speaks neither PCP nor NAT-PMP nor UPnP")

// find finds out which protocol the gateway speaks. nonce is what PCP knows our mappings by.
func find(ctx context.Context, n Network, nonce [12]byte) (router, error) {
	p := &pcp{network: n, nonce: nonce}
	errPCP := p.announce(ctx)
	if errPCP == nil {
		return p, nil
	}
	m := &natPMP{network: n}
	_, errPMP := m.externalAddress(ctx)
	if errPMP == nil {
		return m, nil
	}
	d, errUPnP := findIGD(ctx, n)
	if errUPnP == nil {
		return d, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w (PCP: %w; NAT-PMP: %w; UPnP: %w)", ErrNoProtocol, errPCP, errPMP, errUPnP)
}

// Spoken is the name of the protocol that the gateway speaks. It opens nothing. The error is ErrNoProtocol
// if there is none.
func Spoken(ctx context.Context, n Network) (string, error) {
	r, err := find(ctx, n, [12]byte{})
	if err != nil {
		return "", err
	}
	return r.String(), nil
}
