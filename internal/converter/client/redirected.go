package client

import (
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/converter/engine"
)

// Redirected returns a front for connections that were redirected to it. take returns the server of the connection that
// comes from an address. If it returns false, the connection is refused. Several goroutines call it.
func (c *Client) Redirected(take func(from netip.AddrPort) (server netip.AddrPort, ok bool)) engine.Front {
	return redirecting{c, take}
}

type redirecting struct {
	client *Client
	take   func(netip.AddrPort) (netip.AddrPort, bool)
}

// Open implements engine.Front.
func (f redirecting) Open(a engine.Accepted) (engine.Opening, error) {
	server, ok := f.take(a.Peer)
	if !ok {
		return nil, fmt.Errorf("nobody said which server the connection from %v is for", a.Peer)
	}
	return open(f.client, netip.Addr{}, server), nil
}
