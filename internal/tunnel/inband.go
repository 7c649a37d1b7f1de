package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/session/wire"
)

// InBand keeps a client admitted to the in-band detours of one waypoint address.
type InBand struct {
	*Keeper
	admission admission
}

// NewInBand returns an InBand for a lead's IPv4 address. timestamps reports whether this host's
// SYNs have TCP timestamps.
func NewInBand(lead Lead, timestamps func() (bool, error), tell func(Standing), log *slog.Logger) *InBand {
	i := &InBand{admission: admission{timestamps: timestamps}}
	i.Keeper = newKeeper(path.InBand, []Lead{lead}, &i.admission, tell, log)
	return i
}

// Auth returns how to authenticate SYNs to the waypoint, or nil if that is not required. It may be
// called from any goroutine.
func (i *InBand) Auth() *inband.Auth {
	i.admission.mu.Lock()
	defer i.admission.mu.Unlock()
	return i.admission.auth
}

// admission implements end for in-band detours. It holds a key and changes nothing on the host.
type admission struct {
	timestamps func() (bool, error)

	mu     sync.Mutex
	client netip.Addr // our address as the waypoint sees it; invalid: not admitted
	auth   *inband.Auth
}

func (a *admission) request() (wire.TunnelRequest, error) {
	return wire.TunnelRequest{Kind: wire.InBand}, nil
}

func (a *admission) set(_ context.Context, _ place, g wire.TunnelGrant) error {
	if !g.Client.Is4() {
		return fmt.Errorf("the waypoint admits %v: in-band detours are for IPv4 only", g.Client)
	}
	var auth *inband.Auth
	if len(g.Key) > 0 {
		// The authenticator takes the place of a SYN's timestamp echo.
		switch on, err := a.timestamps(); {
		case err != nil:
			return err
		case !on:
			return fmt.Errorf("the waypoint requires authenticated SYNs: %w", inband.ErrNoTimestamps)
		}
		auth = &inband.Auth{Key: inband.Key(g.Key), Client: g.Client, ClientPort: g.ClientPort}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.client, a.auth = g.Client, auth
	return nil
}

func (a *admission) tunnels(context.Context) ([]detour.Tunnel, string) {
	return []detour.Tunnel{{Kind: path.InBand, Path: a.client.String()}}, ""
}

// check finds no conflict, because an admission uses nothing on the host.
func (a *admission) check() (conflict error, left bool, err error) { return nil, true, nil }

func (a *admission) drop() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.client, a.auth = netip.Addr{}, nil
	return nil
}

// lasting returns false: the waypoint admits only during a session.
func (a *admission) lasting() bool { return false }
