package portmap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Protocol is a transport protocol with ports.
type Protocol string

// The protocols.
const (
	UDP Protocol = "udp"
	TCP Protocol = "tcp"
)

// Want is a port of this host to open to the outside.
type Want struct {
	Protocol Protocol
	Port     uint16
}

func (w Want) String() string { return fmt.Sprintf("%d/%s", w.Port, w.Protocol) }

// Mapping is a port that a router has opened.
type Mapping struct {
	Want
	External netip.AddrPort // forwarded to the port
	Until    time.Time      // zero: without limit; otherwise it must be renewed before
}

// Network describes this host's position in its network.
type Network struct {
	Gateway netip.Addr // the router
	Own     netip.Addr // this host's address as the router sees it
}

// router talks one of the protocols to one gateway.
type router interface {
	String() string // the protocol's name
	// open opens or renews a port. The external port is the proposed one if the router allows it.
	open(ctx context.Context, w Want, proposed uint16) (granted, error)
	close(ctx context.Context, w Want, external uint16) error
}

// granted is a router's positive answer.
type granted struct {
	external netip.AddrPort
	lifetime time.Duration // 0: without limit
	// epoch is the time for which the router has remembered mappings, in seconds by its own clock. It
	// is set only if timed is.
	epoch uint32
	timed bool
}

// lifetime is the requested lifetime of a mapping. If the agent is killed or cannot reach the router, a port stays open
// for that time.
const lifetime = 10 * time.Minute

// maxLifetime bounds a router's answer.
const maxLifetime = 24 * time.Hour

// RefusedError is a router's refusal.
type RefusedError struct {
	By   string // the protocol
	Why  string
	Code int // the protocol's own
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the router refused (%s, code %d): %s", e.By, e.Code, e.Why)
}

// refusedWith returns a refusal with a code, and the code's description from the list.
func refusedWith(by string, code int, described []string) error {
	why := fmt.Sprintf("for a reason that we do not know (%d)", code)
	if code < len(described) {
		why = described[code]
	}
	return &RefusedError{By: by, Code: code, Why: why}
}

// ErrNoProtocol means that the gateway supports none of the protocols.
var ErrNoProtocol = errors.New("the router speaks neither PCP nor NAT-PMP nor UPnP")

// find detects the gateway's protocol. nonce identifies our mappings to PCP.
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

// Spoken returns the name of the gateway's protocol without opening a port. The error is
// ErrNoProtocol if there is none.
func Spoken(ctx context.Context, n Network) (string, error) {
	r, err := find(ctx, n, [12]byte{})
	if err != nil {
		return "", err
	}
	return r.String(), nil
}
