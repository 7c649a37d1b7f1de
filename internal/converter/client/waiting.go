package client

import (
	"errors"
	"net/netip"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// Waiting returns a front for programs of this host that name their server by a Convert message (RFC 8803), as to a
// converter, and wait for the answer. who returns the client to whom a cookie was given at an address. If it returns false, the
// connection is reset. Several goroutines call who.
func (c *Client) Waiting(who func(cookie []byte, at netip.Addr) (choice.Who, bool)) engine.Front {
	return waitingFront{c, who}
}

type waitingFront struct {
	client *Client
	who    func(cookie []byte, at netip.Addr) (choice.Who, bool)
}

// Open implements engine.Front.
func (f waitingFront) Open(a engine.Accepted) (engine.Opening, error) {
	return &waiting{front: f, peer: a.Peer.Addr()}, nil
}

// waiting is the state of one connection.
type waiting struct {
	front   waitingFront
	peer    netip.Addr
	server  netip.AddrPort
	attempt *attempt // nil: the message has not come yet
}

// Read implements engine.Opening.
func (o *waiting) Read(b []byte) engine.Step {
	m, n, err := rfc8803.Decode(b)
	if errors.Is(err, rfc8803.ErrShort) {
		return engine.Step{}
	}
	if err != nil || m.Connect == nil {
		return engine.Step{Reset: true}
	}
	who, ok := o.front.who(m.Cookie, o.peer)
	if !ok {
		return engine.Step{Reset: true}
	}
	o.server = m.Connect.Server
	var first *engine.Dial
	o.attempt, first = o.front.client.begin(who, o.server)
	return engine.Step{Used: n, Dial: first}
}

// Dialled implements engine.Opening.
func (o *waiting) Dialled(r engine.Result) engine.Step {
	next, errno := o.attempt.dialled(r)
	if next != nil {
		return engine.Step{Dial: next}
	}
	var m rfc8803.Message
	if errno != 0 {
		m.Error = rfc8803.ErrorOf(errno, o.server.Addr())
	}
	answer, err := m.Append(nil)
	if err != nil {
		return engine.Step{Reset: true}
	}
	return engine.Step{Reply: answer, Close: errno != 0}
}

// Ended implements engine.Ender.
func (o *waiting) Ended() {
	if o.attempt != nil {
		o.attempt.ended()
	}
}

// Spoke implements engine.Witness.
func (o *waiting) Spoke(spoke bool) { o.attempt.spoke(spoke) }
