package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// Grant is a waypoint's positive answer: TCP from Client to Port of the waypoint is forwarded to
// the server for Lease.
type Grant struct {
	Port   uint16
	Lease  time.Duration
	Client netip.Addr
}

// Map requests a mapping to server. proposed is the preferred port, but the waypoint may choose another. If sole is
// set, the client has no other waypoint, so that a loaded waypoint serves it. The error is a *wire.Refusal, a
// *DownError (ErrDown), or ctx's.
func (c *Client) Map(ctx context.Context, server netip.AddrPort, proposed uint16, sole bool) (Grant, error) {
	granted, err := requestGrant[wire.MapGrant](ctx, c, func(id uint64, _ netip.Addr) wire.Message {
		return wire.MapRequest{ID: id, Server: server, Proposed: proposed, Sole: sole}
	})
	return Grant{Port: granted.Port, Lease: granted.Lease, Client: granted.Client}, err
}

// Tunnel requests detours of a kind other than mapped. It fills in ID and Local. Errors are those
// of Map.
func (c *Client) Tunnel(ctx context.Context, req wire.TunnelRequest) (wire.TunnelGrant, error) {
	granted, err := requestGrant[wire.TunnelGrant](ctx, c, func(id uint64, local netip.Addr) wire.Message {
		req.ID, req.Local = id, local
		return req
	})
	var refusal *wire.Refusal
	if errors.As(err, &refusal) && refusal.Code == wire.Malformed {
		// An older waypoint answers an unknown message with Malformed.
		return wire.TunnelGrant{}, &wire.Refusal{ID: refusal.ID, Code: wire.NotOffered,
			Message: fmt.Sprintf("it does not understand the request (%s), its dcol may be older", refusal.Message)}
	}
	if err == nil && granted.Kind != req.Kind {
		return wire.TunnelGrant{}, fmt.Errorf("%s was asked for a tunnel of kind %v and granted %v; update its dcol", c.config.Name, req.Kind, granted.Kind)
	}
	return granted, err
}

// maxMoves bounds how often a request is repeated because the session moved in the meantime.
const maxMoves = 3

// requestGrant requests a grant of type G. say returns the message for an id and our packets'
// source address.
func requestGrant[G wire.Message](ctx context.Context, c *Client, say func(id uint64, local netip.Addr) wire.Message) (G, error) {
	var none G
	for try := 1; ; try++ {
		call, local, err := c.settledCall(ctx)
		if err != nil {
			return none, err
		}
		answer := call.ask(ctx, func(id uint64) wire.Message { return say(id, local) })
		if answer.err != nil {
			return none, answer.err
		}
		// A grant for the address that we have just left is useless. The next one is for the new
		// address.
		if try < maxMoves && c.left(answer.client) {
			continue
		}
		granted, ok := answer.grant.(G)
		if !ok {
			return none, fmt.Errorf("%s answered a request with a %T; update its dcol", c.config.Name, answer.grant)
		}
		return granted, nil
	}
}

// settledCall waits until the session is not moving. It returns the session and the source address
// of our packets.
func (c *Client) settledCall(ctx context.Context) (*call, netip.Addr, error) {
	for {
		c.mu.Lock()
		call, local, moving, settled, problem := c.call, c.state.Local, c.state.Moving, c.settled, c.state.Problem
		c.mu.Unlock()
		if call == nil {
			return nil, netip.Addr{}, &DownError{Waypoint: c.config.Name, Problem: problem}
		}
		if !moving {
			return call, local, nil
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return nil, netip.Addr{}, ctx.Err()
		}
	}
}

// left reports whether the session has moved, or is about to move, away from this address.
func (c *Client) left(addr netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Up && (c.state.Moving || c.state.Observed.Addr() != addr)
}
