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

// Port is a UDP port that others share: only what is not theirs comes and goes here.
type Port interface {
	// ReadOther waits for a packet.
	ReadOther(ctx context.Context, b []byte) (n int, from netip.AddrPort, err error)
	WriteOther(b []byte, to netip.AddrPort) error
}

const (
	// retryFirst is how long to wait for an answer before asking again, then twice as long, tries times:
	// RFC 8489, 6.2.1, cut short, as somebody waits for it.
	retryFirst = 500 * time.Millisecond
	tries      = 3
)

// Prober asks other members where they see a port, and answers them. It is the only reader of the port.
type Prober struct {
	port    Port
	log     *slog.Logger
	other   Sender
	answers *answers // used by Run only

	mu      sync.Mutex
	waiting map[stun.ID]chan heard
	sent    map[netip.Addr]time.Time // to whom, last
}

// heard is a message that somebody waits for.
type heard struct {
	from     netip.AddrPort
	stranger bool // nothing was sent there lately
	stun.Message
}

const (
	// strangeAfter is for how long a NAT may let in somebody that was sent to: RFC 4787, 4.3 wants two minutes
	// at least, and five as a default.
	strangeAfter = 6 * time.Minute
	// maxSent bounds how many are remembered; when there are more, all are taken for strangers no more.
	maxSent = 1 << 12
)

// Sender is another UDP port of the host, that nothing is read from; it is a *net.UDPConn.
type Sender interface {
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
}

// NewProber makes one; Run makes it work. Both ports stay the caller's, and must be open while it runs.
func NewProber(port Port, other Sender, log *slog.Logger) *Prober {
	return &Prober{
		port: port, other: other, log: log, answers: newAnswers(),
		waiting: make(map[stun.ID]chan heard), sent: make(map[netip.Addr]time.Time),
	}
}

// write sends a packet, and remembers to whom.
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

// isStranger says whether nothing was sent there lately; the caller holds mu.
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
			return nil //nolint:nilerr // an end that was wanted
		case err != nil:
			return fmt.Errorf("read what is not QUIC at the session's port: %w", err)
		}
		m, err := stun.Parse(buf[:n])
		if err != nil {
			continue // scanners send all sorts of things
		}
		p.handOut(heard{from: from, Message: m})
		if m.Request {
			p.answer(from, m)
		}
	}
}

// handOut gives a message to who waits for its id.
func (p *Prober) handOut(h heard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h.stranger = p.isStranger(h.from.Addr())
	select {
	case p.waiting[h.ID] <- h:
	default: // nobody waits, or has not taken the last one
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

// ErrNoAnswer says that nobody answered a probe.
var ErrNoAnswer = errors.New("no answer to probes")

// Ask asks the member at an address where it sees our port.
func (p *Prober) Ask(ctx context.Context, at netip.AddrPort) (netip.AddrPort, error) {
	h, err := p.ask(ctx, at, stun.Message{ID: stun.NewID(), Request: true}, func(h heard) bool { return h.from == at })
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("ask %v/udp where it sees us: %w", at, err)
	}
	return h.Seen, nil
}

// FromOtherPort tries whether what a member sends from another port than the one we sent to gets in. It
// is Missed also when the member did not answer for reasons of its own: Ask it before.
func (p *Prober) FromOtherPort(ctx context.Context, at netip.AddrPort) (Trial, error) {
	_, err := p.ask(ctx, at, stun.Message{ID: stun.NewID(), Request: true, OtherPort: true},
		func(h heard) bool { return h.from.Addr() == at.Addr() && h.from.Port() != at.Port() })
	return trial(err)
}

// FromOther tries whether what somebody sends whom we never sent to gets in: tell has to make them send a
// request with this id (see Knock) to our port. It is NotTried if tell fails, or who knocks is no stranger.
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
			return NotTried, fmt.Errorf("%v knocked, where something was sent to lately", h.from)
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

// ask sends a request until an answer comes that is good.
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

// await waits for an answer that is good, and ErrNoAnswer at the end of patience.
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
