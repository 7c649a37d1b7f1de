package cc

import (
	"container/heap"
	"math/rand/v2"
	"testing"
)

// This file has the models of the congestion controls share one bottleneck, packet by packet, as the measurements of fairness of
// `make bench-transport` do: 10 Mbit/s, a round trip of 40 ms without a queue, and a drop-tail queue of as much.

const (
	jitter = 500. // µs, of each round trip
	second = 1e6  // µs
)

// line is a bottleneck: the time that a packet takes and the round trip without a queue, in µs, and the packets in the queue.
type line struct{ service, trip, room float64 }

// measured is the bottleneck of the measurements.
var measured = line{1200, 40_000, 40_000 / 1200}

// sender is one subflow, or a TCP connection.
type sender struct {
	control               string
	mates                 []*sender // subflows of the same connection, with itself
	window, threshold     uint32
	state                 state
	vegas                 vegas
	next, recover         uint32
	inFlight              uint32
	recovering            bool
	smoothed              float64
	count                 uint32 // Reno's
	acked, ackedAtMeasure uint64
}

// answer is what a sender learns of a packet.
type answer struct {
	at, sent float64
	of       *sender
	number   uint32
	lost     bool
}

type answers []answer

func (a answers) Len() int           { return len(a) }
func (a answers) Less(i, j int) bool { return a[i].at < a[j].at }
func (a answers) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *answers) Push(x any)        { *a = append(*a, x.(answer)) }
func (a *answers) Pop() any {
	last := len(*a) - 1
	x := (*a)[last]
	*a = (*a)[:last]
	return x
}

type shared struct {
	line
	now, busy float64 // until when the link is
	pending   answers
	random    *rand.Rand
}

func (l *shared) send(s *sender) {
	for s.inFlight < s.window {
		l.busy = max(l.busy, l.now)
		a := answer{sent: l.now, of: s, number: s.next}
		if a.lost = (l.busy-l.now)/l.service >= l.room; !a.lost {
			l.busy += l.service
		}
		a.at = l.busy + l.trip + jitter*l.random.Float64()
		heap.Push(&l.pending, a)
		s.next++
		s.inFlight++
	}
}

func (s *sender) reno() {
	if s.window < s.threshold {
		s.window++
	} else if s.count++; s.count >= s.window {
		s.count, s.window = 0, s.window+1
	}
}

func (s *sender) subflows() (own subflow, all []subflow) {
	for _, m := range s.mates {
		f := subflow{window: uint64(m.window), rtt: uint64(m.smoothed)}
		if m == s {
			own = f
		}
		all = append(all, f)
	}
	return own, all
}

func (s *sender) take(a answer) {
	s.inFlight--
	if a.lost {
		if int32(a.number-s.recover) >= 0 {
			s.threshold = max(s.window/2, 2)
			s.window, s.recover, s.recovering, s.vegas.Paused = s.threshold, s.next, true, 1
		}
		return
	}
	s.acked++
	rtt := a.at - a.sent
	if s.smoothed == 0 {
		s.smoothed = rtt
	}
	s.smoothed += (rtt - s.smoothed) / 8
	v := &s.vegas
	v.Base = min(v.Base, uint32(rtt))
	v.Sum, v.Count = v.Sum+uint64(rtt), v.Count+1
	if s.recovering {
		if int32(a.number-s.recover) < 0 {
			return
		}
		s.recovering, v.Paused, v.Sum, v.Count, v.End = false, 0, 0, 0, s.next
	}
	k := socket{Ack: a.number + 1, Acked: 1, Next: s.next, Window: s.window, Threshold: s.threshold, Clamp: 1 << 20, Limited: true}
	switch s.control {
	case "reno":
		s.reno()
	case "lia":
		s.state, s.window = s.state.avoid(k, func() int64 { own, all := s.subflows(); return int64(lia(own, all)) })
	case "wvegas":
		var others uint64
		for _, m := range s.mates {
			if m != s {
				others += m.vegas.Rate
			}
		}
		after, window, threshold, byReno := v.avoid(k, others)
		if s.vegas = after; byReno {
			s.reno()
		} else {
			s.window, s.threshold = window, threshold
		}
	}
}

// sharing returns what a connection with two subflows carries over what each of others carries beside it, in 60 s after 20 s.
func sharing(on line, seed uint64, control, beside string, others int) float64 {
	l := &shared{line: on, random: rand.New(rand.NewPCG(seed, 1))}
	var all []*sender
	begin := func(at float64, control string) *sender {
		s := &sender{control: control, window: 10, threshold: 1 << 30, vegas: vegas{Base: 1 << 30, Alpha: waitingLeast}}
		s.mates = []*sender{s}
		all = append(all, s)
		l.run(at)
		l.send(s)
		return s
	}
	a := begin(0, control)
	b := begin(80_000, control)
	a.mates = []*sender{a, b}
	b.mates = a.mates
	for i := range others {
		begin(second*(0.1+0.1*float64(i)+0.1*l.random.Float64()), beside)
	}
	l.run(20 * second)
	for _, s := range all {
		s.ackedAtMeasure = s.acked
	}
	l.run(80 * second)
	var mptcp, tcp float64
	for i, s := range all {
		if got := float64(s.acked - s.ackedAtMeasure); i < 2 {
			mptcp += got
		} else {
			tcp += got / float64(others)
		}
	}
	return mptcp / tcp
}

func (l *shared) run(until float64) {
	for len(l.pending) > 0 && l.pending[0].at <= until {
		a := heap.Pop(&l.pending).(answer)
		l.now = a.at
		a.of.take(a)
		l.send(a.of)
	}
	l.now = until
}

// mean returns the mean of some runs of sharing.
func mean(t *testing.T, on line, control, beside string, others int) (mean float64) {
	const runs = 5
	var list []float64
	for seed := range uint64(runs) {
		ratio := sharing(on, seed, control, beside, others)
		list = append(list, ratio)
		mean += ratio / runs
	}
	t.Logf("%s with two subflows to each of %d by %s on %v: %.2f, mean %.2f", control, others, beside, on, list, mean)
	return mean
}

// Two subflows by Reno take twice as much as a TCP connection. LIA takes no more than its target. Where windows are small, the
// simulation gives it more than the kernel does.
func TestSharesOfLIA(t *testing.T) {
	larger := line{service: 150, trip: 40_000, room: 40_000 / 150}
	for _, others := range []int{1, 3} {
		reno, small, large := mean(t, measured, "reno", "reno", others), mean(t, measured, "lia", "reno", others), mean(t, larger, "lia", "reno", others)
		if reno < 1.8 || reno > 2.2 || small > 1.05*reno || large < 0.5 || large > 1.2 {
			t.Errorf("against %d: Reno %.2f, LIA with small windows %.2f, with larger ones %.2f", others, reno, small, large)
		}
	}
}

// Two subflows by wVegas take about as much as a connection with one.
func TestSharesOfWVegas(t *testing.T) {
	if one := mean(t, measured, "wvegas", "wvegas", 1); one < 0.7 || one > 1.3 {
		t.Errorf("%.2f times as much", one)
	}
	if three := mean(t, measured, "wvegas", "wvegas", 3); three < 0.7 || three > 1.8 {
		t.Errorf("%.2f times as much as each of three", three)
	}
}
