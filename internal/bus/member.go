package bus

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
)

// Message is a coordinator's message to this member, or to all.
type Message struct {
	Topic string
	Data  []byte
	ToAll bool
}

// Member is a member's connection to the bus.
type Member struct {
	*link
	received chan *nats.Msg
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
}

// Refusal is a coordinator's refusal of a request.
type Refusal struct{ Why string }

func (r *Refusal) Error() string { return "the coordinator refuses: " + r.Why }

// Connect connects a member. It calls receive with the messages for this member and for all, one after the other.
// Messages of one coordinator come in the order in which they were sent.
func Connect(c Config, receive func(Message)) (*Member, error) {
	l, err := connect(c, "member")
	if err != nil {
		return nil, err
	}
	m := &Member{link: l, received: make(chan *nats.Msg, receiveBacklog)}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	for _, subject := range []string{allPrefix + ">", toPrefix + m.name + ".>"} {
		if _, err := m.nats.ChanSubscribe(subject, m.received); err != nil {
			m.Close()
			return nil, fmt.Errorf("listen to %s on the bus: %w", subject, err)
		}
	}
	go m.dispatch(receive)
	return m, nil
}

func (m *Member) dispatch(receive func(Message)) {
	for {
		select {
		case msg := <-m.received:
			topic, toAll := strings.CutPrefix(msg.Subject, allPrefix)
			if !toAll {
				topic = strings.TrimPrefix(msg.Subject, toPrefix+m.name+".")
			}
			receive(Message{Topic: topic, Data: msg.Data, ToAll: toAll})
		case <-m.ctx.Done():
			return
		}
	}
}

// Close closes the connection. After that receive is not called.
func (m *Member) Close() {
	m.cancel()
	m.link.Close()
}

// Tell sends a message to one of the coordinators. It may be lost without an error.
func (m *Member) Tell(topic string, data []byte) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	return m.publish(fromPrefix+m.name+"."+topic, data)
}

// Ask sends a request to one of the coordinators and waits for the answer. The error may be a *Refusal,
// ErrNoCoordinator, ErrNotConnected, or the context's.
func (m *Member) Ask(ctx context.Context, topic string, data []byte) ([]byte, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	if len(data) > MaxPayload {
		return nil, fmt.Errorf("ask for %s: %d bytes are %w", topic, len(data), ErrTooLarge)
	}
	answer, err := m.nats.RequestWithContext(ctx, fromPrefix+m.name+"."+topic, data)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", topic, sayWhy(err))
	}
	if why := answer.Header.Get(refusalHeader); why != "" {
		return nil, fmt.Errorf("ask for %s: %w", topic, &Refusal{Why: why})
	}
	return answer.Data, nil
}
