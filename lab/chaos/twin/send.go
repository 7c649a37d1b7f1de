package twin

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"time"

	"github.com/detour-collective/dcol/lab/chaos/plan"
)

const (
	// tick is the interval at which a sender writes what its rate allows.
	tick = 20 * time.Millisecond
	// messageSize is the length of a message, and of its answer.
	messageSize = 1200
	// maxUnanswered bounds what a server has still to answer.
	maxUnanswered = 1 << 16
)

var magic = []byte("dcolchao")

// header returns the first bytes of a connection, which identify it.
func header(id uint64) []byte { return binary.BigEndian.AppendUint64(bytes.Clone(magic), id) }

// send writes the data of a direction, then closes it.
func (c *Conn) send(ctx context.Context, conn duplex, direction int, answers <-chan int) error {
	var err error
	out := &sender{c: c, conn: conn, direction: direction, content: newContent(c.id, uint64(direction))}
	switch {
	case c.stream.Kind == plan.Messages && direction == toServer:
		err = out.paced(ctx, messageSize, time.Duration(messageSize*8/float64(c.stream.Rate)*float64(time.Second)))
	case c.stream.Kind == plan.Messages:
		err = out.answer(answers)
	case c.stream.Kind == plan.Upload == (direction == toServer):
		err = out.paced(ctx, int(float64(c.stream.Rate)/8*tick.Seconds()), tick)
	default: // only the other end sends
		drain(answers)
	}
	if err != nil {
		return err
	}
	return conn.CloseWrite()
}

type sender struct {
	c         *Conn
	conn      io.Writer
	direction int
	content   content
	buffer    []byte
}

// paced writes pieces at an interval until the connection is to stop. It does not catch up after delays.
func (s *sender) paced(ctx context.Context, size int, interval time.Duration) error {
	clock := time.NewTicker(interval)
	defer clock.Stop()
	for {
		if err := s.write(size); err != nil {
			return err
		}
		select {
		case <-clock.C:
		case <-s.c.stopping:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answer writes as many bytes as arrived.
func (s *sender) answer(came <-chan int) error {
	for n := range came {
		if err := s.write(n); err != nil {
			return err
		}
	}
	return nil
}

// write counts the bytes before it writes them, because the receiver may be faster than this goroutine.
func (s *sender) write(n int) error {
	if cap(s.buffer) < n {
		s.buffer = make([]byte, n)
	}
	b := s.buffer[:n]
	s.content.fill(b)
	s.c.mu.Lock()
	s.c.sent[s.direction] += int64(n)
	s.c.mu.Unlock()
	_, err := s.conn.Write(b)
	return err
}

// drain waits until the other end has sent everything.
func drain(came <-chan int) {
	for range came {
	}
}
