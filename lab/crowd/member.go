package crowd

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
)

const (
	connectWithin = 30 * time.Second
	askWithin     = 30 * time.Second
	askTries      = 10
	askPause      = 2 * time.Second
	// recordLife is a member's own; the record ends with its certificate.
	recordLife = 14 * 24 * time.Hour
)

// member is one of the crowd.
type member struct {
	number     int
	broadcasts *broadcasts

	// Since it joined.
	id           *collective.Identity
	coordinators []enrol.Endpoint
	servers      []bus.Endpoint
	sequence     uint64

	mu   sync.Mutex
	jwt  string
	line *bus.Member // nil: it is not on the bus

	connects atomic.Uint64
	retries  atomic.Uint64 // of questions
	gaps     atomic.Uint64
	changes  atomic.Uint64
	revision atomic.Uint64 // revision of the directory received; 0: nothing received yet

	keeper *directory.Keeper // of one of the sample
	taken  sync.Map          // one of the sample: when it had taken which roots and lists, time.Time by hash
}

// Name returns a member's name, by its number from 0.
func Name(number int) string { return fmt.Sprintf("member-%05d", number) }

func (m *member) name() string { return Name(m.number) }

// join makes it a member. Those that share no trust have files of their own for roots and lists, and take new
// ones.
func (m *member) join(ctx context.Context, dir string, line enrol.Line, shared *collective.Files) error {
	files := filesIn(filepath.Join(dir, m.name()))
	request, err := newMember(files, m.name())
	if err != nil {
		return err
	}
	w, err := enrol.Join(ctx, line, request, nil)
	if err != nil {
		return err
	}
	roots, lists := []byte(w.Roots), []byte(w.Lists)
	if shared != nil {
		files.CA, files.CRL, roots, lists = shared.CA, shared.CRL, nil, nil
	}
	if m.id, err = install(files, []byte(w.Chain), roots, lists); err != nil {
		return err
	}
	m.coordinators, m.jwt = w.Coordinators, w.BusJWT
	for _, s := range w.BusServers {
		m.servers = append(m.servers, bus.Endpoint(s))
	}
	return nil
}

// connect brings it onto the bus. As a real one, it asks then for what it has missed.
func (m *member) connect(ctx context.Context) error {
	up := make(chan struct{}, 1)
	line, err := bus.Connect(bus.Config{
		Identity: m.id, Servers: m.servers, Log: slog.New(slog.DiscardHandler),
		JWT: func() (string, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.jwt, nil
		},
		Changed: func(s bus.State) {
			if !s.Connected {
				return
			}
			m.connects.Add(1)
			m.revision.Store(0)
			if m.keeper != nil {
				m.keeper.Connected()
			}
			select {
			case up <- struct{}{}:
			default:
			}
		},
	}, m.receive)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.line = line
	m.mu.Unlock()
	select {
	case <-up:
	case <-time.After(connectWithin):
		return fmt.Errorf("%s is not connected after %v: %w", m.name(), connectWithin, line.State().Err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return m.persist(ctx, enrol.TopicTrust, []byte(enrol.HashTrust(m.id.Trust())))
}

// onBus returns its line; nil: it is not there.
func (m *member) onBus() *bus.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.line
}

func (m *member) leave() {
	m.mu.Lock()
	line := m.line
	m.line = nil
	m.mu.Unlock()
	if line != nil {
		line.Close()
	}
}

func (m *member) connected() bool {
	line := m.onBus()
	return line != nil && line.State().Connected
}

func (m *member) ask(ctx context.Context, topic string, data []byte) ([]byte, error) {
	line := m.onBus()
	if line == nil {
		return nil, bus.ErrNotConnected
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	return line.Ask(ctx, topic, data)
}

// publish signs a record and returns when the coordinator has stored it.
func (m *member) publish(ctx context.Context) (*directory.SignedRecord, error) {
	self, now := m.id.Self(), time.Now()
	m.sequence = directory.NextSequence(m.sequence, now)
	expires := now.Add(recordLife)
	if self.NotAfter.Before(expires) {
		expires = self.NotAfter
	}
	from, err := m.address(ctx)
	if err != nil {
		return nil, err
	}
	s, err := directory.Sign(directory.Record{
		Collective: self.Collective, Name: self.Name, Sequence: m.sequence, Issued: now, Expires: expires,
		Addresses: []netip.Addr{from},
		Port:      enrol.DefaultPort, Roles: []string{directory.RoleClient, directory.RoleWaypoint}, Kinds: []string{"in-band", "mapped", "wireguard"},
		Capacity: 100e6, Region: "eu-north", AS: 64512 + uint32(m.number), Key: directory.WireGuardKey(m.id.PublicKey()), Subnet: self.Subnet,
	}, m.id.Chain(), m.id.Sign)
	if err != nil {
		return nil, err
	}
	data, err := s.Encode()
	if err != nil {
		return nil, err
	}
	return s, m.persist(ctx, enrol.TopicRecord, data)
}

// address returns the address that the member's packets to its coordinator leave from. The coordinator takes no
// record with another one, unless it was shown to be the member's.
func (m *member) address(ctx context.Context) (netip.Addr, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", m.coordinators[0].Address) // sends nothing
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the member's own address: %w", err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// persist repeats a request until there is an answer, as real members do.
func (m *member) persist(ctx context.Context, topic string, data []byte) error {
	for tries := 1; ; tries++ {
		_, err := m.ask(ctx, topic, data)
		if err == nil || tries == askTries {
			return err
		}
		m.retries.Add(1)
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// renew gets another certificate and takes it.
func (m *member) renew(ctx context.Context) error {
	w, err := enrol.Renew(ctx, m.id, m.coordinators, nil)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.jwt = w.BusJWT
	m.mu.Unlock()
	return m.id.TakeCertificate([]byte(w.Chain))
}

// keep has it hold a whole copy of the directory.
func (m *member) keep() {
	m.keeper = directory.Open(directory.Config{
		Limits: directory.DefaultLimits(), Trust: m.id.Trust, Log: slog.New(slog.DiscardHandler),
		Ask: func(ctx context.Context, ask []byte) ([]byte, error) { return m.ask(ctx, enrol.TopicDirectory, ask) },
	})
}

// receive is called by the bus, one message after the other.
func (m *member) receive(msg bus.Message) {
	if msg.Topic == enrol.TopicCheck {
		m.check(msg.Data)
		return
	}
	heard, err := m.broadcasts.take(m.number, msg.Topic, msg.Data)
	switch {
	case err != nil:
		m.gaps.Add(1) // its content is lost
	case heard.batch != nil:
		m.count(heard.batch)
		if m.keeper != nil {
			m.keeper.Receive(msg.Data)
		}
	case heard.trust != nil && m.keeper != nil && heard.trust.Whole():
		if _, err := m.id.TakeTrust([]byte(heard.trust.Roots), []byte(heard.trust.Lists)); err == nil {
			m.taken.Store(heard.trust.Hash, time.Now())
			m.keeper.TrustChanged()
		}
	}
}

// count follows the feed. The first message after a connect has the current revision.
func (m *member) count(b *directory.Batch) {
	at := m.revision.Load()
	if at != 0 && b.After > at {
		m.gaps.Add(1)
	}
	for _, c := range b.Changes {
		if c.Revision > at {
			m.changes.Add(1)
		}
	}
	m.revision.Store(max(at, b.Revision))
}

// check answers that the other member can be reached, without trying.
func (m *member) check(data []byte) {
	var c enrol.Check
	if json.Unmarshal(data, &c) != nil {
		return
	}
	if answer, err := json.Marshal(enrol.Checked{ID: c.ID, Reachable: true}); err == nil {
		if line := m.onBus(); line != nil {
			_ = line.Tell(enrol.TopicChecked, answer) // nothing waits for it
		}
	}
}
