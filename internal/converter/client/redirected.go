package client

import (
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
)

// Taker returns the client and the server of the redirected connection that comes from an address. It returns false if no
// connection from there was redirected.
type Taker func(from netip.AddrPort) (who choice.Who, server netip.AddrPort, ok bool)

// Redirected returns a front for connections that were redirected to it. others gets those that take does not know; nil: they
// are refused. Several goroutines call take.
func (c *Client) Redirected(take Taker, others engine.Front) engine.Front {
	return redirecting{c, take, others}
}

type redirecting struct {
	client *Client
	take   Taker
	others engine.Front
}

// Open implements engine.Front.
func (f redirecting) Open(a engine.Accepted) (engine.Opening, error) {
	who, server, ok := f.take(a.Peer)
	if !ok && f.others != nil {
		return f.others.Open(a)
	}
	if !ok {
		return nil, fmt.Errorf("nobody said which server the connection from %v is for", a.Peer)
	}
	return open(f.client, who, server), nil
}
