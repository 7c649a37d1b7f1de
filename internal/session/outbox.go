package session

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// outboxFull is the number of queued bytes above which put blocks.
const outboxFull = 64 << 10

var errClosed = errors.New("the session has ended")

// outbox collects messages while earlier ones are being written, so that pipelined requests and
// answers share packets and system calls.
type outbox struct {
	mu     sync.Mutex
	change *sync.Cond // signals something to write, room again, or closed
	buf    []byte
	closed bool
}

func newOutbox() *outbox {
	o := &outbox{}
	o.change = sync.NewCond(&o.mu)
	return o
}

// put queues a message. It blocks while the queue is full because the other side does not read.
func (o *outbox) put(m wire.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.buf) >= outboxFull && !o.closed {
		o.change.Wait()
	}
	if o.closed {
		return errClosed
	}
	buf, err := wire.Append(o.buf, m)
	o.buf = buf
	o.change.Broadcast()
	return err
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.change.Broadcast()
}

type deadlineWriter interface {
	io.Writer
	SetWriteDeadline(time.Time) error
}

// run writes until the outbox is closed or writing fails.
func (o *outbox) run(w deadlineWriter) error {
	defer o.close()
	var spare []byte
	for {
		o.mu.Lock()
		for len(o.buf) == 0 && !o.closed {
			o.change.Wait()
		}
		if o.closed {
			o.mu.Unlock()
			return nil
		}
		batch := o.buf
		o.buf = spare[:0]
		o.change.Broadcast()
		o.mu.Unlock()

		if err := w.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := w.Write(batch); err != nil {
			return err
		}
		spare = batch
	}
}
