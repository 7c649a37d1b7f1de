package trace

import (
	"context"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
)

// verify finds the destination's distance. Answers to equal SYNs do not show which SYN they answer. So it sends one SYN
// alone, to the first distance beyond the last router, then one hop further, until it is answered.
func (t *tracer) verify(ctx context.Context) error {
	s := t.sweep
	t.path.Distance = s.distance
	t.path.Sure = s.distance > 0
	if !s.reached || s.bounded || t.stopped {
		return nil
	}
	if t.options.Keep {
		if s.distance == 0 {
			t.path.Distance = t.leastThatFits()
		}
		return nil
	}
	defer t.reset()
	if s.distance > 0 {
		return nil
	}
	probed := len(t.matcher.probes)
	t.matcher.distinct, t.apart = true, true
	for distance := s.lastAnswered() + 1; distance <= t.options.MaxHops; distance++ {
		if len(t.matcher.probes)-probed >= ahead {
			break
		}
		t.reset() // a server answers a repeated SYN only now and then
		answered, err := t.alone(ctx, distance)
		if err != nil {
			return err
		}
		if answered {
			t.path.Distance, t.path.Sure = distance, true
			t.path.Answer.RTT = t.latestRTT
			return nil
		}
	}
	t.path.Distance = t.leastThatFits()
	return nil
}

// leastThatFits returns the first distance beyond the last router. It is bounded, because routers that lie may have
// answered at all distances, although a probe has reached the destination.
func (t *tracer) leastThatFits() int { return min(t.sweep.lastAnswered()+1, t.options.MaxHops) }

// alone sends one probe and waits for the destination's answer, or a router's.
func (t *tracer) alone(ctx context.Context, distance int) (reached bool, err error) {
	t.hearPending()
	first := len(t.matcher.probes)
	for try := range 2 {
		if err := t.wait(ctx); err != nil {
			return false, err
		}
		t.send(distance)
		end := time.Now().Add(t.sweep.patience(try + 1))
		for time.Now().Before(end) {
			got, err := t.hear(ctx, end)
			if err != nil {
				return false, err
			}
			if got == answer && slices.Contains(t.matcher.probes[first:], t.latestProbe) {
				return true, nil
			}
			if h := t.hops[distance]; h != nil && len(h.Quotes) > 0 {
				return false, nil
			}
		}
	}
	return false, nil
}

// reset ends the connection that a SYN has begun at the destination, if it has.
func (t *tracer) reset() {
	a := t.latest
	if a == nil || a.TCP == nil || !a.TCP.Flags.Has(packet.SYN|packet.ACK) {
		return
	}
	if r, err := Reset(a); err == nil {
		_ = t.net.Send(r) // the server gives up by itself later
	}
	t.latest = nil
}

// Reset returns the segment with which a host refuses a received segment.
func Reset(received *packet.Packet) ([]byte, error) {
	r := packet.Segment(received.To(), received.From(), packet.TCP{Seq: received.TCP.Ack, Flags: packet.RST}, nil)
	if err := r.Seal(); err != nil {
		return nil, err
	}
	return r.Bytes(), nil
}
