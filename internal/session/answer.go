package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// answering is the waypoint's work during one session: one goroutine reads, and each request has
// its own.
type answering struct {
	*service
	line     *line
	out      *outbox
	peer     Peer // as known to the handler; used by the reading goroutine only
	slots    chan struct{}
	left     bool // the member's previous address was received; used by the reading goroutine only
	requests sync.WaitGroup
}

func newAnswering(s *service, l *line, peer Peer, out *outbox) *answering {
	return &answering{service: s, line: l, out: out, peer: peer, slots: make(chan struct{}, s.config.Limits.Outstanding)}
}

// run reads until the session ends, and waits for outstanding requests. serving ends with the
// agent, not with the session.
func (a *answering) run(serving context.Context, decoder *wire.Decoder) ending {
	ctx, cancel := context.WithCancel(a.line.conn.Context())
	defer a.requests.Wait()
	defer cancel()
	for {
		m, err := decoder.Next()
		var malformed *wire.MalformedError
		if err != nil && !errors.As(err, &malformed) {
			return endingOf(serving, err)
		}
		if err := a.line.use.messages.Wait(ctx); err != nil {
			return endingOf(serving, err)
		}
		// The address may change at any time, so it is read once for everything that this message
		// causes.
		from := addrPort(a.line.conn.RemoteAddr())
		a.follow(from.Addr())
		peer := a.peer
		var reply wire.Message
		switch m := m.(type) {
		case wire.MapRequest:
			reply = a.begin(m.ID, func() wire.Message {
				granted, refusal := a.handler.Map(ctx, peer, m)
				granted.ID, granted.Client = m.ID, peer.Addr
				return grantOr(granted, m.ID, refusal)
			})
		case wire.TunnelRequest:
			reply = a.begin(m.ID, func() wire.Message {
				granted, refusal := a.handler.Tunnel(ctx, peer, m)
				granted.ID, granted.Kind, granted.Client = m.ID, m.Kind, peer.Addr
				return grantOr(granted, m.ID, refusal)
			})
		case wire.Ping:
			reply = wire.Pong{ID: m.ID, Observed: from}
		case wire.Left:
			reply = a.leave(ctx, m.From)
		case nil:
			reply = &wire.Refusal{ID: malformed.ID, Code: wire.Malformed, Message: malformed.Error()}
		default:
			reply = &wire.Refusal{Code: wire.Malformed, Message: fmt.Sprintf("a waypoint does not accept a %T", m)}
		}
		if reply == nil {
			continue
		}
		if err := a.out.put(reply); err != nil {
			return endingOf(serving, err)
		}
	}
}

// follow notifies the handler of a new address once the requests from the previous one are
// answered.
func (a *answering) follow(addr netip.Addr) {
	if addr == a.peer.Addr {
		return
	}
	a.requests.Wait()
	before := a.peer
	a.peer.Addr = addr
	a.config.Log.Info("session moved", "member", a.peer.Name, "session", a.peer.ID, "from", addr, "before", before.Addr)
	a.handler.SessionMoved(before, a.peer)
}

// leave ends the session that this one follows, whose end may not have been noticed yet, and
// notifies the handler of the address that the member has left. It is accepted once in a session
// because of its cost.
func (a *answering) leave(ctx context.Context, from netip.AddrPort) wire.Message {
	if a.left {
		return &wire.Refusal{Code: wire.Malformed, Message: "the previous address may be sent only once in a session"}
	}
	a.left = true
	if broken := a.registry.other(a.line, from); broken != nil {
		closeLine(broken.conn, closeNewer, "its client reconnected with another session")
		select {
		case <-broken.gone:
		case <-ctx.Done():
			return nil
		}
	}
	if from.Addr() != a.peer.Addr {
		a.config.Log.Info("member left", "member", a.peer.Name, "session", a.peer.ID, "address", from.Addr())
		a.handler.MemberLeft(a.peer, from.Addr())
	}
	return nil
}

// begin starts deciding a request in a goroutine of its own. It returns a refusal if there are too
// many.
func (a *answering) begin(id uint64, decide func() wire.Message) wire.Message {
	if !a.line.use.requests.Allow() {
		return &wire.Refusal{ID: id, Code: wire.RateLimited, RetryAfter: time.Second,
			Message: fmt.Sprintf("%v requests a second are allowed", a.config.Limits.RequestRate)}
	}
	select {
	case a.slots <- struct{}{}:
	default:
		return &wire.Refusal{ID: id, Code: wire.Busy, RetryAfter: 100 * time.Millisecond,
			Message: fmt.Sprintf("%d requests may be under way", a.config.Limits.Outstanding)}
	}
	a.requests.Go(func() {
		defer func() { <-a.slots }()
		a.send(id, decide())
	})
	return nil
}

func grantOr(granted wire.Message, id uint64, refusal *wire.Refusal) wire.Message {
	if refusal == nil {
		return granted
	}
	answer := *refusal
	answer.ID = id
	return answer
}

// send answers a request with the handler's result.
func (a *answering) send(id uint64, answer wire.Message) {
	err := a.out.put(answer)
	if err == nil || errors.Is(err, errClosed) {
		return
	}
	a.config.Log.Error("answer cannot be sent", "member", a.line.member.Name, "err", err)
	_ = a.out.put(&wire.Refusal{ID: id, Code: wire.Internal}) // fails only if the session has ended
}
