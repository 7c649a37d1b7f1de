package client

import (
	"fmt"
	"net/netip"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
)

// Transparent returns a front for connections that TPROXY takes: they called the server's address. port is the listener's
// port. Connections to this port are refused, because one that nobody redirected would lead back to the listener.
// unreached is the mark (SO_MARK) of connections that end because their server was not reached.
func (c *Client) Transparent(port uint16, unreached uint32) engine.Front {
	return transparent{c, port, unreached}
}

type transparent struct {
	client    *Client
	port      uint16
	unreached uint32
}

// Open implements engine.Front.
func (f transparent) Open(a engine.Accepted) (engine.Opening, error) {
	server, err := a.Local()
	if err != nil {
		return nil, err
	}
	if server.Port() == f.port {
		return nil, fmt.Errorf("%v called the relay itself, at port %d", a.Peer, f.port)
	}
	return &taken{open(f.client, choice.Who{Host: a.Peer.Addr()}, server), a, f.unreached}, nil
}

// taken is a connection that TPROXY took.
type taken struct {
	*redirected
	accepted  engine.Accepted
	unreached uint32
}

// Dialled implements engine.Opening.
func (o *taken) Dialled(r engine.Result) engine.Step {
	next, errno := o.attempt.dialled(r)
	if errno != 0 && isUnreached(errno) {
		_ = o.accepted.Mark(o.unreached) // without the mark, only the next attempt fails as well
	}
	return engine.Step{Dial: next}
}

// redirected is a connection whose server is known from the start. Its program sees the connection as up already, so it
// learns of failures by a reset.
type redirected struct {
	attempt *attempt
	first   *engine.Dial
}

// open returns the state of a connection to a server.
func open(c *Client, who choice.Who, server netip.AddrPort) *redirected {
	a, first := c.beginFrom(who, server)
	return &redirected{a, first}
}

// Read implements engine.Opening.
func (o *redirected) Read([]byte) engine.Step { return engine.Step{Dial: o.first} }

// Dialled implements engine.Opening.
func (o *redirected) Dialled(r engine.Result) engine.Step {
	next, _ := o.attempt.dialled(r)
	return engine.Step{Dial: next}
}

// Ended implements engine.Ender.
func (o *redirected) Ended() { o.attempt.ended() }

// Spoke implements engine.Witness.
func (o *redirected) Spoke(spoke bool) { o.attempt.spoke(spoke) }
