package nat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/detour-collective/dcol/internal/nat/stun"
)

// Port is a UDP port shared with other protocols. It receives only packets that are not theirs.
type Port interface {
	// ReadOther waits for a packet.
	ReadOther(ctx context.Context, b []byte) (n int, from netip.AddrPort, err error)
	WriteOther(b []byte, to netip.AddrPort) error
}

const (
	// retryFirst is the wait for the first answer. It doubles for each of tries requests: RFC 8489,
	// 6.2.1, shortened because somebody waits for the result.
	retryFirst = 500 * time.Millisecond
	tries      = 3
)

// Prober asks other members for the external address of a port, and answers their requests. It must be
// the only reader of the port.
type Prober struct {
	port    Port
	log     *slog.Logger
	other   Sender
	answers *answers // used by Run only

	mu      sync.Mutex
	waiting map[stun.ID]chan heard
	sent    map[netip.Addr]time.Time // last time of sending, by destination
}

// heard is a received message that a request waits for.
type heard struct {
	from     netip.AddrPort
	stranger bool // nothing was sent there recently
	stun.Message
}

const (
	// strangeAfter is the time for which a NAT may let in packets from an address after a packet was sent
	// there. RFC 4787, 4.3 requires at least two minutes and recommends five.
	strangeAfter = 6 * time.Minute
	// maxSent bounds the size of sent. Beyond it, no source counts as a stranger any more.
	maxSent = 1 << 12
)

// Sender is another UDP port of the host, used for sending only. *net.UDPConn implements it.
type Sender interface {
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
}

// NewProber returns a Prober. Run must be called to start it. Both ports must stay open while it
// runs, and are not closed by it.
func NewProber(port Port, other Sender, log *slog.Logger) *Prober {
	return &Prober{
		port: port, other: other, log: log, answers: newAnswers(),
		waiting: make(map[stun.ID]chan heard), sent: make(map[netip.Addr]time.Time),
	}
}

// write sends a packet and records its destination.
func (p *Prober) write(b []byte, to netip.AddrPort) error {
	p.mu.Lock()
	now := time.Now()
	if _, known := p.sent[to.Addr()]; !known && len(p.sent) >= maxSent {
		maps.DeleteFunc(p.sent, func(_ netip.Addr, at time.Time) bool { return now.Sub(at) > strangeAfter })
	}
	if len(p.sent) < maxSent {
		p.sent[to.Addr()] = now
	}
	p.mu.Unlock()
	return p.port.WriteOther(b, to)
}

// isStranger reports whether nothing was sent to a recently. The caller holds mu.
func (p *Prober) isStranger(a netip.Addr) bool {
	at, known := p.sent[a]
	return len(p.sent) < maxSent && (!known || time.Since(at) > strangeAfter)
}

// Run reads and answers until ctx ends, or the port is closed.
func (p *Prober) Run(ctx context.Context) error {
	var buf [1500]byte
	for {
		n, from, err := p.port.ReadOther(ctx, buf[:])
		switch {
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return nil //nolint:nilerr // the expected end
		case err != nil:
			return fmt.Errorf("read packets other than QUIC at the session's port: %w", err)
		}
		m, err := stun.Parse(buf[:n])
		if err != nil {
			continue // scanners send arbitrary packets
		}
		p.handOut(heard{from: from, Message: m})
		if m.Request {
			p.answer(from, m)
		}
	}
}

// handOut delivers a message to the request that waits for its id.
func (p *Prober) handOut(h heard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.stranger = p.isStranger(h.from.Addr())
	select {
	case p.waiting[h.ID] <- h:
	default: // nobody waits, or the last one was not taken yet
	}
}

func (p *Prober) answer(from netip.AddrPort, request stun.Message) {
	if !p.answers.allow(from.Addr()) {
		return
	}
	answer := stun.Message{ID: request.ID, Seen: from}.Append(nil)
	var err error
	if request.OtherPort {
		_, err = p.other.WriteToUDPAddrPort(answer, from)
	} else {
		err = p.write(answer, from)
	}
	if err != nil {
		p.log.Debug("no answer to a probe", "to", from, "err", err)
	}
}

// ErrNoAnswer is returned if no probe was answered.
var ErrNoAnswer = errors.New("no answer to probes")

// Ask asks the member at an address for our port's external address.
func (p *Prober) Ask(ctx context.Context, at netip.AddrPort) (netip.AddrPort, error) {
	h, err := p.ask(ctx, at, stun.Message{ID: stun.NewID(), Request: true}, func(h heard) bool { return h.from == at })
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask %v/udp at which address it sees this host: %w", at, err)
	}
	return h.Seen, nil
}

// FromOtherPort tests whether packets get in that a member sends from another port than the one we
// sent to. The result is also Missed if the member does not answer at all, so Ask it first.
func (p *Prober) FromOtherPort(ctx context.Context, at netip.AddrPort) (Trial, error) {
	_, err := p.ask(ctx, at, stun.Message{ID: stun.NewID(), Request: true, OtherPort: true},
		func(h heard) bool { return h.from.Addr() == at.Addr() && h.from.Port() != at.Port() })
	return trial(err)
}

// FromOther tests whether packets get in from an address that we never sent to. tell must make its
// owner send a request with this id (see Knock) to our port. The result is NotTried if tell fails,
// or if we have sent to that address before.
func (p *Prober) FromOther(ctx context.Context, tell func(ctx context.Context, id stun.ID) error) (Trial, error) {
	id := stun.NewID()
	ch := p.wait(id)
	defer p.forget(id)
	if err := tell(ctx, id); err != nil {
		return NotTried, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, knocksLast, ErrNoAnswer)
	defer cancel()
	select {
	case h := <-ch:
		if !h.stranger {
			return NotTried, fmt.Errorf("a test packet came from %v, to which this host has sent lately", h.from)
		}
		return Came, nil
	case <-ctx.Done():
		return trial(context.Cause(ctx))
	}
}

func trial(err error) (Trial, error) {
	switch {
	case errors.Is(err, ErrNoAnswer):
		return Missed, nil
	case err != nil:
		return NotTried, err
	}
	return Came, nil
}

// ask sends a request until an answer arrives for which good is true.
func (p *Prober) ask(ctx context.Context, to netip.AddrPort, request stun.Message, good func(heard) bool) (heard, error) {
	ch := p.wait(request.ID)
	defer p.forget(request.ID)
	packet := request.Append(nil)
	patience := retryFirst
	for range tries {
		if err := p.write(packet, to); err != nil {
			return heard{}, err
		}
		h, err := await(ctx, ch, patience, good)
		if !errors.Is(err, ErrNoAnswer) {
			return h, err
		}
		patience *= 2
	}
	return heard{}, ErrNoAnswer
}

// await waits for an answer for which good is true. It returns ErrNoAnswer after patience.
func await(ctx context.Context, ch <-chan heard, patience time.Duration, good func(heard) bool) (heard, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case h := <-ch:
			if !h.Request && good(h) {
				return h, nil
			}
		case <-timer.C:
			return heard{}, ErrNoAnswer
		case <-ctx.Done():
			return heard{}, context.Cause(ctx)
		}
	}
}

func (p *Prober) wait(id stun.ID) <-chan heard {
	ch := make(chan heard, 4)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[id] = ch
	return ch
}

func (p *Prober) forget(id stun.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, id)
}
