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

// answerTime is how long openvpn may take to answer a command. It has one thread, which also moves
// packets.
const answerTime = 10 * time.Second

// management is the connection for commands to openvpn and notices from it. Answers arrive in the
// order of the commands, notices at any time (OpenVPN: doc/management-notes.txt).
type management struct {
	conn net.Conn

	mu      sync.Mutex // held while writing and changing pending, so that both have the same order
	pending []*command
	broken  error
}

// command is a command that waits for its answer.
type command struct {
	listing bool // the answer has many lines and ends with END
	lines   []string
	err     error
	done    chan struct{}
}

// notice is an unsolicited message of openvpn such as ">STATE:...".
type notice struct{ kind, text string }

// post sends a command without waiting. Unlike ask, it may be called by the reading goroutine.
func (m *management) post(text string) { m.send(text, false) }

// ask sends a command and returns the lines of its answer if it is a listing.
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

// read delivers notices until the connection ends, and then fails all outstanding commands.
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

// answer assigns a line to the oldest outstanding command.
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
