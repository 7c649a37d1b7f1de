package client

import (
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
)

// Taker returns the client and the server of the redirected connection that comes from an address. If it returns false, the
// connection is refused.
type Taker func(from netip.AddrPort) (who choice.Who, server netip.AddrPort, ok bool)

// Redirected returns a front for connections that were redirected to it. Several goroutines call take.
func (c *Client) Redirected(take Taker) engine.Front { return redirecting{c, take} }

type redirecting struct {
	client *Client
	take   Taker
}

// Open implements engine.Front.
func (f redirecting) Open(a engine.Accepted) (engine.Opening, error) {
	who, server, ok := f.take(a.Peer)
	if !ok {
		return nil, fmt.Errorf("nobody said which server the connection from %v is for", a.Peer)
	}
	return open(f.client, who, server), nil
}
