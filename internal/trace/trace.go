package trace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// Network sends packets, and receives packets that may concern them.
type Network interface {
	// Send sends an IP packet with its header.
	Send(b []byte) error
	// Arrivals delivers IP packets with their headers. It is closed when nothing can arrive any more.
	Arrivals() <-chan Arrival
}

// Arrival is a packet that has arrived.
type Arrival struct {
	At    time.Time
	Bytes []byte
}

// Options are the choices of a trace. The zero value is the default.
type Options struct {
	MaxHops int   // 0: 30
	Only    []int // distances; empty: all
	Tries   int   // for each hop; 0: 3
	Silent  []int // distances that did not answer in an earlier trace of the path: they are tried once
	// Pace is the time between two probes, 0: 1 ms.
	Pace time.Duration
	// Keep leaves a connection that a probe has begun to the caller: the destination is not sent a reset, and its
	// distance is not verified.
	Keep bool
	// Before, unless nil, is called before each packet is sent, and may wait: it bounds a rate that traces share.
	Before func(context.Context) error
	// FixedID keeps the IP identification of the probe, which the user has chosen. Probes then differ as those of IPv6 do.
	FixedID bool
	// OnQuote is called for each quote as it arrives, by the caller's goroutine. If it returns true, the trace ends.
	OnQuote func(distance int, sent *packet.Packet, reply *packet.Packet, q Quote) (stop bool)
}

// MaxHops is the largest time to live.
const MaxHops = 255

func (o Options) withDefaults() (Options, error) {
	if o.MaxHops == 0 {
		o.MaxHops = defaultMaxHops
	}
	if o.MaxHops < 1 || o.MaxHops > MaxHops {
		return o, fmt.Errorf("the number of hops must be between 1 and %d, not %d", MaxHops, o.MaxHops)
	}
	for _, d := range o.Only {
		if d < 1 || d > MaxHops {
			return o, fmt.Errorf("a hop must be between 1 and %d, not %d", MaxHops, d)
		}
	}
	if o.Tries == 0 {
		o.Tries = defaultTries
	}
	if o.Pace == 0 {
		o.Pace = pace
	}
	return o, nil
}

// tracer is a trace in progress.
type tracer struct {
	net     Network
	probe   *packet.Packet
	options Options
	sweep   *sweep
	matcher matcher
	path    *Path
	hops    map[int]*Hop
	stopped bool
	// apart gives each SYN its own sequence number, so that an answer shows which SYN it belongs to.
	apart bool
	// latest is the destination's last answer, and latestProbe the probe that it answers.
	latest      *packet.Packet
	latestProbe *sentProbe
	latestRTT   time.Duration
	may         bool  // a packet may be sent (Options.Before)
	failure     error // of sending
	failed      int
}

// ErrNothingSent means that the network took no packet.
var ErrNothingSent = errors.New("no probe could be sent")

// Run traces a path with a probe, which must be sealed. Its time to live is set for each hop.
func Run(ctx context.Context, net Network, probe *packet.Packet, options Options) (*Path, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	byID := probe.V4 != nil && !options.FixedID
	if probe, err = prepare(probe, byID); err != nil {
		return nil, err
	}
	first, err := compare.NewSent(probe.Bytes())
	if err != nil {
		return nil, err
	}
	t := &tracer{
		net: net, probe: probe, options: options, hops: map[int]*Hop{},
		sweep: newSweep(options.MaxHops, options.Only, options.Tries, options.Pace),
		path:  &Path{Source: probe.Src(), Destination: probe.Dst(), Probe: first},
	}
	t.matcher.byID = byID
	if probe.TCP != nil && !byID {
		t.matcher.distinct, t.matcher.bySequence = opens(probe.TCP), opens(probe.TCP) || !options.Keep
	}
	t.sweep.silent = options.Silent
	t.drain()
	start := time.Now()
	if err := t.run(ctx); err != nil {
		return nil, err
	}
	if len(t.matcher.probes) == 0 {
		return nil, errors.Join(ErrNothingSent, t.failure)
	}
	if err := t.verify(ctx); err != nil {
		return nil, err
	}
	t.path.Took = time.Since(start)
	end := t.path.Distance
	if r := t.path.Refused; r != nil && !sameAddr(r.From, t.path.Destination) && t.path.Answer == nil {
		t.path.Distance, t.path.Sure = 0, false // a router refused it; the destination was not reached
	}
	for _, h := range t.hops {
		t.path.Hops = append(t.path.Hops, *h)
	}
	slices.SortFunc(t.path.Hops, func(a, b Hop) int { return a.Distance - b.Distance })
	t.path.Hops = t.upTo(t.path.Hops, end)
	t.path.Locate()
	return t.path, nil
}

// run sends the probes and hears the quotes until the sweep ends.
func (t *tracer) run(ctx context.Context) error {
	for !t.stopped {
		now := time.Now()
		distance, ok, again, ended := t.sweep.next(now)
		switch {
		case ended:
			return nil
		case ok && !t.may:
			if err := t.wait(ctx); err != nil {
				return err
			}
		case ok:
			t.sweep.tried(distance, now)
			t.send(distance)
			if t.failed > tooManyFailures && len(t.matcher.probes) == 0 {
				return fmt.Errorf("%w: %w", ErrNothingSent, t.failure)
			}
			t.hearPending()
		default:
			t.may = false // permits that traces keep would be used at once, beyond the rate
			if _, err := t.hear(ctx, again); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait waits until a packet may be sent. The caller then decides again what is due, so that this wait does not count
// as waiting for an answer.
func (t *tracer) wait(ctx context.Context) error {
	if t.options.Before != nil {
		if err := t.options.Before(ctx); err != nil {
			return err
		}
	}
	t.may = true
	t.hearPending()
	return nil
}

// tooManyFailures bounds the failures to send before the trace gives up, if sending has never worked.
const tooManyFailures = 3

// send sends the probe of a distance.
func (t *tracer) send(distance int) {
	t.may = false
	n := len(t.matcher.probes)
	p := t.vary(n, distance)
	if err := p.Seal(); err != nil {
		t.failure, t.failed = err, t.failed+1
		return
	}
	b := p.Bytes()
	sent, err := compare.NewSent(b)
	now := time.Now()
	if err == nil {
		err = t.net.Send(b)
	}
	if err != nil {
		t.failure, t.failed = err, t.failed+1
		return
	}
	if n == 0 {
		t.path.Probe = sent
	}
	t.matcher.probes = append(t.matcher.probes, &sentProbe{distance, now, p, sent})
	t.hop(distance).Probes++
	t.path.Sent++
}

func (t *tracer) hop(distance int) *Hop {
	h := t.hops[distance]
	if h == nil {
		h = &Hop{Distance: distance}
		t.hops[distance] = h
	}
	return h
}

// ErrClosed means that the network has ended.
var ErrClosed = errors.New("the sockets are closed")

// hear handles arrivals until a time, or until one of them concerns the trace.
func (t *tracer) hear(ctx context.Context, until time.Time) (kind, error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return foreign, ctx.Err()
		case <-timer.C:
			return foreign, nil
		case a, ok := <-t.net.Arrivals():
			if !ok {
				return foreign, ErrClosed
			}
			if k := t.take(a); k == quoting || k == answer {
				return k, nil
			}
		}
	}
}

// drain discards packets that arrived before the first probe: they answer earlier ones.
func (t *tracer) drain() {
	for {
		select {
		case _, ok := <-t.net.Arrivals():
			if !ok {
				return
			}
		default:
			return
		}
	}
}

// hearPending handles the packets that have already arrived.
func (t *tracer) hearPending() {
	for {
		select {
		case a, ok := <-t.net.Arrivals():
			if !ok {
				return
			}
			t.take(a)
		default:
			return
		}
	}
}

// take handles one packet.
func (t *tracer) take(a Arrival) kind {
	p, err := packet.Parse(a.Bytes)
	if err != nil || p == nil {
		return foreign
	}
	k, probe, quote := t.matcher.match(p)
	switch k {
	case stray:
		t.path.Strays++
	case quoting:
		q, err := probe.quotedBy(p, quote, a.At)
		if err != nil {
			t.path.Strays++
			return stray
		}
		t.quoted(probe, p, q)
	case answer:
		t.answered(probe, p, a)
	}
	return k
}

// mostQuotes bounds the quotes that are kept of a hop: a router that sends thousands adds nothing.
const mostQuotes = 8

func (t *tracer) quoted(probe *sentProbe, reply *packet.Packet, q Quote) {
	h := t.hop(probe.distance)
	if len(h.Quotes) >= mostQuotes {
		return
	}
	h.Quotes = append(h.Quotes, q)
	switch {
	case !q.Exceeded && t.path.Refused == nil:
		t.path.Refused = &q
		t.sweep.arrived(time.Now(), probe.distance, q.RTT)
	case !q.Exceeded, sameAddr(q.From, t.path.Destination):
		t.sweep.arrived(time.Now(), probe.distance, q.RTT)
	default:
		t.sweep.heard(probe.distance, q.RTT)
	}
	if t.options.OnQuote != nil && t.options.OnQuote(probe.distance, probe.packet, reply, q) {
		t.stopped = true
	}
}

func (t *tracer) answered(probe *sentProbe, p *packet.Packet, a Arrival) {
	rtt := a.At.Sub(probe.at)
	distance, known := probe.distance, rtt
	if !t.matcher.distinct && probe.packet.ICMP == nil {
		distance, known = 0, 0 // it may answer any of them
	}
	if t.path.Answer == nil || betterAnswer(p, t.path.Answer.Packet) {
		t.path.Answer = &Answer{RTT: known, Packet: p, Bytes: a.Bytes}
	}
	t.latest, t.latestProbe, t.latestRTT = p, probe, rtt
	t.sweep.arrived(time.Now(), distance, rtt)
}

// betterAnswer reports whether p is a SYN+ACK and old is not, but a stray ACK or a reset of an earlier connection.
func betterAnswer(p, old *packet.Packet) bool {
	const both = packet.SYN | packet.ACK
	return p.TCP != nil && old.TCP != nil && p.TCP.Flags.Has(both) && !old.TCP.Flags.Has(both)
}

// upTo leaves out probed distances beyond the end of the path that did not answer.
func (t *tracer) upTo(hops []Hop, end int) []Hop {
	if t.sweep.bounded {
		return hops
	}
	if end == 0 {
		end = t.sweep.lastAnswered()
	}
	return slices.DeleteFunc(hops, func(h Hop) bool { return h.Distance > end })
}
