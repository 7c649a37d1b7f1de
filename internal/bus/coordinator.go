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

	"github.com/detour-collective/dcol/internal/ratelimit"
)

const (
	coordinators  = "coordinators" // the queue group: each message goes to one of its members
	refusalHeader = "Dcol-Refusal"
	intake        = 1024 // most messages that wait to be checked against the limits
	waiting       = 256  // most accepted messages that wait for a worker
	workers       = 64   // there are many, because most of the time they wait for the store
	answerTimeout = 30 * time.Second

	// A member may send memberBurst messages at once, for a first copy of the directory, and then one each memberEvery.
	memberBurst = 200
	memberEvery = 50 * time.Millisecond
	// floodAfter is the number of excess messages that count as a flood, if the member's whole burst was not available
	// again in between.
	floodAfter = 1000
)

// Request is a member's message. From is authentic, because the servers let no other member use its subject.
type Request struct {
	From  string
	Topic string
	Data  []byte
}

// Handlers handle members' messages.
type Handlers struct {
	// Handle handles a message. If the member waits for an answer, it gets the returned data, or the error's text as a
	// *Refusal. It is called concurrently.
	Handle func(ctx context.Context, r Request) ([]byte, error)
	// Flood is called, in its own goroutine, when a member keeps sending more than it may. It shall revoke the member's
	// JWT. It is not called again until the member has been quiet.
	Flood func(member string)
}

// Counts counts members' messages since the start.
type Counts struct {
	Taken   uint64 // passed to Handle
	Refused uint64 // beyond the member's limit
	Busy    uint64 // beyond what this coordinator can handle
	Foreign uint64 // with an address for the answer that is not in the member's inbox
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

// Close closes the connection and waits for handlers to return. It unsubscribes first, so that members' messages go to
// other coordinators at once.
func (c *Coordinator) Close() {
	if c.taking.Unsubscribe() == nil && c.nats.IsConnected() {
		c.nats.FlushTimeout(time.Second) //nolint:errcheck // if it fails, the servers notice when the connection ends
	}
	c.cancel()
	c.link.Close()
	c.running.Wait()
}

// judge checks every message against the limits at once, so that one member's flood does not delay others.
func (c *Coordinator) judge() {
	limits := ratelimit.New(memberBurst, memberEvery)
	for {
		var msg *nats.Msg
		select {
		case msg = <-c.received:
		case <-c.ctx.Done():
			return
		}
		from, topic, ok := sender(msg.Subject)
		if !ok {
			continue // cannot happen: the subscription has only such subjects
		}
		if excess := limits.Take(from, time.Now()); excess > 0 {
			c.refused.Add(1)
			switch {
			case excess < floodAfter:
				c.answer(from, msg, nil, errors.New("you send more than a member may: wait a little"))
			case excess == floodAfter:
				c.config.Log.Warn("bus: a member floods its coordinators", "member", from)
				if c.handlers.Flood != nil {
					c.running.Go(func() { c.handlers.Flood(from) })
				}
			}
			continue
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

// answer sends an answer to the member's inbox.
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

// TellAll sends a message to all connected members.
func (c *Coordinator) TellAll(topic string, data []byte) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	return c.publish(allPrefix+topic, data)
}

// Flush returns when the server has received all messages, and has queued those to all members for each of them. It
// takes longer with more members.
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

// Counts returns the counts of members' messages.
func (c *Coordinator) Counts() Counts {
	return Counts{Taken: c.taken.Load(), Refused: c.refused.Load(), Busy: c.busy.Load(), Foreign: c.foreign.Load()}
}
