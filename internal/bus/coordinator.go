package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	coordinators  = "coordinators" // the queue group: one of them takes a message
	refusalHeader = "Dcol-Refusal"
	intake        = 1024 // messages that wait to be judged
	waiting       = 256  // messages accepted that wait for a worker
	workers       = 64   // most wait for the store
	answerTimeout = 30 * time.Second
)

// Request is what a member told or asked. From is proven: the servers let no other member send it.
type Request struct {
	From  string
	Topic string
	Data  []byte
}

// Handlers are what a coordinator does with members' messages.
type Handlers struct {
	// Handle takes a message; what it returns is the answer if the member waits for one, an error becomes a
	// *Refusal with its text. It is called from several goroutines.
	Handle func(ctx context.Context, r Request) ([]byte, error)
	// Flood is told of a member that goes on sending more than a member may, to have its JWT revoked. It is
	// called from a goroutine of its own, once until the member keeps quiet.
	Flood func(member string)
}

// Counts are messages of members since the start.
type Counts struct {
	Taken   uint64 // given to Handle
	Refused uint64 // more than a member may send
	Busy    uint64 // more than this coordinator can take
	Foreign uint64 // with an answer wanted somewhere else than in the member's inbox
}

// Coordinator is a coordinator's connection to the bus.
type Coordinator struct {
	*link
	jetstream jetstream.JetStream
	handlers  Handlers
	taking    *nats.Subscription
	received  chan *nats.Msg
	accepted  chan accepted
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	running   sync.WaitGroup

	taken, refused, busy, foreign atomic.Uint64
}

type accepted struct {
	request Request
	msg     *nats.Msg
}

// ConnectCoordinator connects a coordinator, with a JWT of Authority.CoordinatorJWT.
func ConnectCoordinator(c Config, h Handlers) (*Coordinator, error) {
	l, err := connect(c, "coordinator")
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(l.nats)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	co := &Coordinator{
		link: l, jetstream: js, handlers: h, ctx: ctx, cancel: cancel,
		received: make(chan *nats.Msg, intake), accepted: make(chan accepted, waiting),
	}
	if co.taking, err = l.nats.ChanQueueSubscribe(fromPrefix+">", coordinators, co.received); err != nil {
		l.Close()
		cancel()
		return nil, fmt.Errorf("listen to members on the bus: %w", err)
	}
	co.running.Go(co.judge)
	for range workers {
		co.running.Go(co.work)
	}
	return co, nil
}

// Close ends the connection for good and waits for handlers to return. The servers hear first that it
// takes no more, so that members' messages go to other coordinators at once.
func (c *Coordinator) Close() {
	if c.taking.Unsubscribe() == nil && c.nats.IsConnected() {
		c.nats.FlushTimeout(time.Second) //nolint:errcheck // then they learn it when the connection ends
	}
	c.cancel()
	c.link.Close()
	c.running.Wait()
}

// judge sees every message at once, so that a flood of one member's costs the others nothing.
func (c *Coordinator) judge() {
	limiter := newLimiter()
	for {
		var msg *nats.Msg
		select {
		case msg = <-c.received:
		case <-c.ctx.Done():
			return
		}
		from, topic, ok := sender(msg.Subject)
		if !ok {
			continue // cannot be: it is not what we subscribed to
		}
		switch limiter.take(from, time.Now()) {
		case flood:
			c.refused.Add(1)
			c.config.Log.Warn("bus: a member floods its coordinators", "member", from)
			if c.handlers.Flood != nil {
				c.running.Go(func() { c.handlers.Flood(from) })
			}
			continue
		case ignore:
			c.refused.Add(1)
			continue
		case refuse:
			c.refused.Add(1)
			c.answer(from, msg, nil, errors.New("you send more than a member may: wait a little"))
			continue
		case accept:
		}
		if msg.Reply != "" && !isInbox(msg.Reply, from) {
			c.foreign.Add(1)
			continue
		}
		select {
		case c.accepted <- accepted{Request{From: from, Topic: topic, Data: msg.Data}, msg}:
			c.taken.Add(1)
		default:
			c.busy.Add(1)
			c.answer(from, msg, nil, errors.New("this coordinator is busy: ask again"))
		}
	}
}

func (c *Coordinator) work() {
	for {
		select {
		case a := <-c.accepted:
			ctx, cancel := context.WithTimeout(c.ctx, answerTimeout)
			data, err := c.handlers.Handle(ctx, a.request)
			cancel()
			c.answer(a.request.From, a.msg, data, err)
		case <-c.ctx.Done():
			return
		}
	}
}

// answer sends an answer to the member's inbox and nowhere else.
func (c *Coordinator) answer(member string, to *nats.Msg, data []byte, err error) {
	if to.Reply == "" || !isInbox(to.Reply, member) {
		return
	}
	answer := nats.NewMsg(to.Reply)
	if len(data) > MaxPayload {
		err = fmt.Errorf("the answer has %d bytes, %w", len(data), ErrTooLarge)
	}
	if err != nil {
		answer.Header.Set(refusalHeader, err.Error())
	} else {
		answer.Data = data
	}
	if err := c.nats.PublishMsg(answer); err != nil {
		c.config.Log.Debug("bus: an answer is lost", "member", member, "err", err)
	}
}

// TellAll sends a message to every member that is connected.
func (c *Coordinator) TellAll(topic string, data []byte) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	return c.publish(allPrefix+topic, data)
}

// Flush returns when the server has taken all that was sent, and has what was for all members ready to be
// sent to each: the more there are, the longer that takes.
func (c *Coordinator) Flush(ctx context.Context) error {
	if err := c.nats.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("wait for the bus's server: %w", sayWhy(err))
	}
	return nil
}

// Tell sends a message to one member, if it is connected.
func (c *Coordinator) Tell(member, topic string, data []byte) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	if err := checkTopic(member); err != nil {
		return err
	}
	return c.publish(toPrefix+member+"."+topic, data)
}

// Counts says what members have sent.
func (c *Coordinator) Counts() Counts {
	return Counts{Taken: c.taken.Load(), Refused: c.refused.Load(), Busy: c.busy.Load(), Foreign: c.foreign.Load()}
}
