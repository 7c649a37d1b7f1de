package openvpn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// answerTime is how long openvpn may take over a command; it has one thread, which moves packets too.
const answerTime = 10 * time.Second

// management is the connection over which openvpn is told what to do and says what happens. Answers
// come in the order of the commands, notices at any time. (OpenVPN: doc/management-notes.txt)
type management struct {
	conn net.Conn

	mu      sync.Mutex // over writing and pending, so that they have the same order
	pending []*command
	broken  error
}

// command is one that waits for its answer.
type command struct {
	listing bool // its answer has many lines, and ends with END
	lines   []string
	err     error
	done    chan struct{}
}

// notice is what openvpn says unasked, as in ">STATE:...".
type notice struct{ kind, text string }

// post sends a command without waiting; the goroutine that reads may do so.
func (m *management) post(text string) { m.send(text, false) }

// ask sends a command and returns its answer: its lines where it is a listing, or else nothing.
func (m *management) ask(ctx context.Context, text string, listing bool) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c := m.send(text, listing)
	select {
	case <-c.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("openvpn does not answer: %w", ctx.Err())
	}
	if c.err != nil {
		name, _, _ := strings.Cut(text, "\n")
		return nil, fmt.Errorf("tell openvpn %q: %w", name, c.err)
	}
	return c.lines, nil
}

func (m *management) send(text string, listing bool) *command {
	c := &command{listing: listing, done: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken == nil {
		m.conn.SetWriteDeadline(time.Now().Add(answerTime))
		_, m.broken = io.WriteString(m.conn, text+"\n")
	}
	if m.broken != nil {
		c.finish(m.broken)
		return c
	}
	m.pending = append(m.pending, c)
	return c
}

func (c *command) finish(err error) {
	c.err = err
	close(c.done)
}

var errSilent = errors.New("openvpn has closed its management connection")

// read hands on notices until the connection ends, and then fails what still waits.
func (m *management) read(handle func(notice)) {
	lines := bufio.NewScanner(m.conn)
	for lines.Scan() {
		line := strings.TrimSuffix(lines.Text(), "\r")
		if rest, ok := strings.CutPrefix(line, ">"); ok {
			kind, text, _ := strings.Cut(rest, ":")
			handle(notice{kind: kind, text: text})
			continue
		}
		m.answer(line)
	}
	err := lines.Err()
	if err == nil {
		err = errSilent
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken == nil {
		m.broken = err
	}
	for _, c := range m.pending {
		c.finish(m.broken)
	}
	m.pending = nil
}

// answer gives a line to the command that it belongs to.
func (m *management) answer(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending) == 0 {
		return
	}
	c := m.pending[0]
	var err error
	switch text, failed := strings.CutPrefix(line, "ERROR:"); {
	case failed:
		err = errors.New(strings.TrimSpace(text))
	case c.listing && line != "END":
		c.lines = append(c.lines, line)
		return
	}
	m.pending = m.pending[1:]
	c.finish(err)
}
