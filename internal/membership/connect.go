package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

// link is the loop's state of the connection to the bus. The bus reconnects by itself.
type link struct {
	dialing bool
	number  uint64         // of the line; news with another number are of an earlier line
	to      []bus.Endpoint // the line's servers
	state   bus.State
	seen    uint64 // connects
	err     error  // why there is no line
	notYet  time.Time
}

// dialAgain is the pause after the bus has refused a configuration as malformed.
const dialAgain = time.Minute

// connectDue makes a line, or a new one if the servers have changed.
func (m *Membership) connectDue(ctx context.Context, now time.Time) time.Time {
	l := &m.link
	servers := m.busServers()
	switch {
	case l.dialing || len(servers) == 0 || *m.jwt.Load() == "":
		return time.Time{}
	case m.line.Load() != nil && slices.Equal(l.to, servers):
		return time.Time{}
	case now.Before(l.notYet):
		return l.notYet
	}
	m.hangUp()
	l.dialing, l.to = true, servers
	l.number++
	number := l.number
	config := bus.Config{
		Identity: m.config.Identity, JWT: func() (string, error) { return *m.jwt.Load(), nil }, Servers: servers,
		Changed: func(s bus.State) { m.post(ctx, func(now time.Time) { m.busChanged(number, s, now) }) },
		Log:     m.log,
	}
	// The first attempt takes seconds for each server that does not answer. An agent that stops does not wait for it.
	go func() {
		line, err := bus.Connect(config, func(msg bus.Message) { m.received(ctx, msg) })
		if ctx.Err() != nil {
			if err == nil {
				line.Close()
			}
			return
		}
		m.post(ctx, func(now time.Time) { m.dialled(line, err, now) })
	}()
	return time.Time{}
}

func (m *Membership) dialled(line *bus.Member, err error, now time.Time) {
	m.link.dialing = false
	if m.link.err = err; err != nil {
		m.link.notYet = now.Add(dialAgain)
		m.log.Warn("membership: the bus cannot be used", "err", err)
		return
	}
	m.line.Store(line)
	m.busChanged(m.link.number, line.State(), now)
}

// hangUp closes the line, if there is one.
func (m *Membership) hangUp() {
	if line := m.line.Swap(nil); line != nil {
		m.link.seen, m.link.state = 0, bus.State{Since: time.Now()}
		line.Close()
	}
}

// reconnect reconnects at once, if there is a line.
func (m *Membership) reconnect() {
	line := m.line.Load()
	if line == nil {
		return
	}
	if err := line.Reconnect(); err != nil {
		m.log.Warn("membership: the bus cannot be reconnected", "err", err)
	}
}

func (m *Membership) busServers() (out []bus.Endpoint) {
	for _, e := range slices.Concat(m.config.BusServers, m.enrolment.BusServers) {
		if at := bus.Endpoint(e); !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}

// busChanged takes the line's new state. After a connect, it requests everything that was missed.
func (m *Membership) busChanged(line uint64, s bus.State, now time.Time) {
	if line != m.link.number || m.line.Load() == nil { // dialled reads the state itself
		return
	}
	m.link.state = s
	switch {
	case s.Connected && s.Connects > m.link.seen:
		m.link.seen = s.Connects
		m.keeper.Connected()
		m.trust.at, m.reach.at, m.publish.notUntil = now, now, time.Time{}
		m.enforced.again(now)
		m.renewing.letIn()
	case !s.Connected && errors.Is(s.Err, bus.ErrNotLetIn):
		m.renewing.notLetIn(now)
	}
}

// connected reports whether the coordinators can be asked.
func (m *Membership) connected() bool { return m.line.Load() != nil && m.link.state.Connected }

// received takes a message. The bus's goroutine calls it.
func (m *Membership) received(ctx context.Context, msg bus.Message) {
	var err error
	switch msg.Topic {
	case enrol.TopicDirectory:
		m.keeper.Receive(msg.Data)
	case enrol.TopicTrust:
		err = m.receiveTrust(ctx, msg.Data)
	case enrol.TopicReachability:
		err = m.receiveReachability(ctx, msg.Data)
	case enrol.TopicCheck:
		err = m.receiveCheck(ctx, msg.Data)
	case enrol.TopicPunch:
		err = m.receivePunch(msg.Data)
	}
	if err != nil {
		m.log.Warn("membership: a coordinator's message cannot be understood", "topic", msg.Topic, "err", err)
	}
}

// askWithin bounds all requests but those for the directory, whose keeper has its own limit.
const askWithin = 15 * time.Second

// ask sends a request to the coordinators.
func (m *Membership) ask(ctx context.Context, topic string, data []byte) ([]byte, error) {
	line := m.line.Load()
	if line == nil {
		return nil, bus.ErrNotConnected
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	return line.Ask(ctx, topic, data)
}

func (m *Membership) askDirectory(ctx context.Context, ask []byte) ([]byte, error) {
	line := m.line.Load()
	if line == nil {
		return nil, bus.ErrNotConnected
	}
	return line.Ask(ctx, enrol.TopicDirectory, ask)
}

func (m *Membership) directoryFile() string { return filepath.Join(m.config.Dir, directoryFile) }

// directoryChanged notices changes of this host's own record, and has waypoints chosen again.
func (m *Membership) directoryChanged(events []directory.Event, now time.Time) {
	self := m.config.Identity.Name()
	for _, e := range events {
		switch {
		case e.Name != self:
		case e.Kind == directory.Left:
			m.removed = e.Why
		default:
			m.removed = ""
			m.askWhoTried(now)
		}
	}
	m.choosing.soon(now)
}

// parse reads a coordinator's JSON. Unknown keys are those of later versions.
func parse[T any](data []byte) (v T, err error) {
	if err := json.Unmarshal(data, &v); err != nil {
		return v, fmt.Errorf("read it: %w", err)
	}
	return v, nil
}
