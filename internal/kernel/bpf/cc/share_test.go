package cc

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/detour-collective/dcol/internal/racetest"
)

// This file has the models of the congestion controls share one bottleneck, packet by packet, as the measurements of
// fairness of `make bench-transport` do: 10 Mbit/s, a round trip of 40 ms without a queue, and a drop-tail queue of as
// much.

const (
	jitter = 500. // µs, of each round trip
	second = 1e6  // µs
)

// line is a bottleneck: the time that a packet takes and the round trip without a queue, in µs, the packets in the queue,
// and the probability that a packet is lost although the queue has room.
type line struct{ service, trip, room, loss float64 }

// measured is the bottleneck of the measurements, larger is one of 80 Mbit/s.
var (
	measured = line{service: 1200, trip: 40_000, room: 40_000 / 1200}
	larger   = line{service: 150, trip: 40_000, room: 40_000 / 150}
)

// queue is a line, and the time until which it is busy.
type queue struct {
	line
	busy float64
}

// sender is one subflow, or a TCP connection.
type sender struct {
	control               string
	via                   *queue
	mates                 []*sender // subflows of the same connection, with itself
	window, threshold     uint32
	state                 state
	vegas                 vegas
	next, recover         uint32
	inFlight              uint32
	recovering            bool
	smoothed              float64
	count                 uint32 // Reno's
	acked                 uint64
	halved                uint64 // how often the window shrank for a loss
	atMeasure             tally
	lossAt, betweenLosses uint64 // OLIA's: packets
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

// shared is a network of bottlenecks.
type shared struct {
	now     float64
	pending answers
	random  *rand.Rand
}

func (l *shared) send(s *sender) {
	for s.inFlight < s.window {
		on := s.via
		on.busy = max(on.busy, l.now)
		a := answer{sent: l.now, of: s, number: s.next}
		a.lost = (on.busy-l.now)/on.service >= on.room || on.loss > 0 && l.random.Float64() < on.loss
		if !a.lost {
			on.busy += on.service
		}
		a.at = on.busy + on.trip + jitter*l.random.Float64()
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

// subflows returns those that have a round trip, as the programs do.
func (s *sender) subflows() (own subflow, all []subflow) {
	for _, m := range s.mates {
		if m.smoothed == 0 {
			continue
		}
		f := subflow{window: uint64(m.window), rtt: uint64(m.smoothed), loss: max(m.acked-m.lossAt, m.betweenLosses)}
		if m == s {
			own = f
		}
		all = append(all, f)
	}
	return own, all
}

// increment returns what the coupled algorithm gives.
func (s *sender) increment() int64 {
	own, all := s.subflows()
	switch s.control {
	case "olia":
		return olia(own, all)
	case "balia":
		return int64(balia(own, all))
	}
	return int64(lia(own, all))
}

func (s *sender) take(a answer) {
	s.inFlight--
	if a.lost {
		if int32(a.number-s.recover) >= 0 {
			s.threshold = max(s.window/2, 2)
			if s.control == "balia" {
				own, all := s.subflows()
				s.threshold = max(s.window-uint32(baliaDecrease(own, all)), 2)
			}
			s.betweenLosses, s.lossAt = s.acked-s.lossAt, s.acked
			s.window, s.recover, s.recovering, s.vegas.Paused = s.threshold, s.next, true, 1
			s.halved++
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
	case "lia", "olia", "balia":
		s.state, s.window = s.state.avoid(k, s.increment)
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

// plan has the bottlenecks of a connection's subflows, and the number of connections beside them on the first
// bottleneck, with as many subflows each.
type plan struct {
	control, beside string
	subflows        []*queue
	others          int
	otherSubflows   int     // 0: 1
	after, during   float64 // seconds: when the count begins, and how long it takes; 0: 20 and 60
}

// tally counts packets that were carried, and losses for which a window shrank.
type tally struct{ packets, losses float64 }

func (s *sender) tally() tally { return tally{float64(s.acked), float64(s.halved)} }

// add adds what was counted between two tallies, of one of n connections.
func (c *tally) add(from, to tally, n int) {
	c.packets += (to.packets - from.packets) / float64(n)
	c.losses += (to.losses - from.losses) / float64(n)
}

// carried counts the packets and losses of the connection, and those of each one beside it, while the plan counts.
func carried(p plan, seed uint64) (own, other tally) {
	l := &shared{random: rand.New(rand.NewPCG(seed, 1))}
	var all, mates []*sender
	begin := func(at float64, control string, via *queue) *sender {
		s := &sender{control: control, via: via, window: 10, threshold: 1 << 30, vegas: vegas{Base: 1 << 30, Alpha: waitingLeast}}
		s.mates = []*sender{s}
		all = append(all, s)
		l.run(at)
		l.send(s)
		return s
	}
	for i, via := range p.subflows {
		mates = append(mates, begin(80_000*float64(i)/float64(max(1, len(p.subflows)-1)), p.control, via))
	}
	for _, s := range mates {
		s.mates = mates
	}
	for i := range p.others {
		var theirs []*sender
		at := second * (0.1 + 0.1*float64(i) + 0.1*l.random.Float64())
		for range max(1, p.otherSubflows) {
			theirs = append(theirs, begin(at, p.beside, p.subflows[0]))
		}
		for _, s := range theirs {
			s.mates = theirs
		}
	}
	after, during := cmp.Or(p.after, 20), cmp.Or(p.during, 60)
	l.run(after * second)
	for _, s := range all {
		s.atMeasure = s.tally()
	}
	l.run((after + during) * second)
	for i, s := range all {
		if i < len(mates) {
			own.add(s.atMeasure, s.tally(), 1)
		} else {
			other.add(s.atMeasure, s.tally(), p.others)
		}
	}
	return own, other
}

// sharing counts what a connection with subflows on one bottleneck carries, and what each of the others of a plan carries
// beside it.
func sharing(on line, seed uint64, p plan, subflows int) (own, other tally) {
	b := &queue{line: on}
	p.subflows = nil
	for range subflows {
		p.subflows = append(p.subflows, b)
	}
	return carried(p, seed)
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
func mean(t *testing.T, on line, control, beside string, subflows, others int) float64 {
	t.Helper()
	return meanOf(t, 5, on, control, beside, subflows, others)
}

func meanOf(t *testing.T, runs int, on line, control, beside string, subflows, others int) (mean float64) {
	t.Helper()
	return meanOfPlan(t, runs, on, plan{control: control, beside: beside, others: others}, subflows)
}

func meanOfPlan(t *testing.T, runs int, on line, p plan, subflows int) (mean float64) {
	t.Helper()
	own, other := repeat(runs, on, p, subflows)
	list := make([]float64, runs)
	for i := range list {
		list[i] = own[i].packets / other[i].packets
		mean += list[i] / float64(runs)
	}
	t.Logf("%s with %d subflows to each of %d by %s with %d on %v: %.2f, mean %.2f", p.control, subflows, p.others, p.beside, max(1, p.otherSubflows), on, list, mean)
	return mean
}

// repeat makes some runs of sharing.
func repeat(runs int, on line, p plan, subflows int) (own, other []tally) {
	own, other = make([]tally, runs), make([]tally, runs)
	var running sync.WaitGroup
	for i := range runs {
		running.Go(func() { own[i], other[i] = sharing(on, uint64(i), p, subflows) })
	}
	running.Wait()
	return own, other
}

// Two subflows by Reno take twice as much as a TCP connection. LIA takes no more than its target. Where windows are
// small, the simulation gives it more than the kernel does.
func TestSharesOfLIA(t *testing.T) {
	for _, others := range []int{1, 3} {
		reno, small, large := mean(t, measured, "reno", "reno", 2, others), mean(t, measured, "lia", "reno", 2, others), mean(t, larger, "lia", "reno", 2, others)
		if reno < 1.8 || reno > 2.2 || small > 1.05*reno || large < 0.5 || large > 1.2 {
			t.Errorf("against %d: Reno %.2f, LIA with small windows %.2f, with larger ones %.2f", others, reno, small, large)
		}
	}
}

// Two subflows by wVegas take about as much as a connection with one, which is Vegas, and as another with two. These
// are the figures with which `make bench-transport` compares the kernel's.
func TestSharesOfWVegas(t *testing.T) {
	for _, test := range []struct {
		others, subflows int
		want             float64
	}{{1, 1, 1.0}, {3, 1, 1.6}, {1, 2, 0.9}, {3, 2, 1.3}} {
		p := plan{control: "wvegas", beside: "wvegas", others: test.others, otherSubflows: test.subflows}
		if got := meanOfPlan(t, 5, measured, p, 2); math.Abs(got-test.want) > 0.2 {
			t.Errorf("%.2f times as much as each of %d with %d subflows, want %.1f", got, test.others, test.subflows, test.want)
		}
	}
}

// On disjoint paths nothing is lost by coupling. On unequal ones BALIA lowers the window of the slower path to a quarter
// (baliaDecrease), less than a queue of one bandwidth-delay product makes up for.
func TestDisjointPaths(t *testing.T) {
	const enough, nearly = 0.985, 0.97
	faster := line{service: 300, trip: 40_000, room: 40_000 / 300}
	for name, second := range map[string]line{"equal": measured, "unequal": faster} {
		on := func(control string) float64 {
			carry, _ := carried(plan{control: control, subflows: []*queue{{line: measured}, {line: second}}}, 1)
			return carry.packets
		}
		reno := on("reno")
		for _, control := range []string{"lia", "olia", "balia"} {
			share, least := on(control)/reno, enough
			if control == "balia" && second != measured {
				least = nearly
			}
			t.Logf("%s on %s paths: %.4f of what uncoupled Reno carries", control, name, share)
			if share < least {
				t.Errorf("%s carries %.4f of what uncoupled Reno does on %s paths", control, share, name)
			}
		}
	}
}

// With more subflows, uncoupled Reno takes more and more of a bottleneck, and the coupled algorithms about as much as a
// TCP connection. The queue holds a bandwidth-delay product, and the windows of eight subflows are of 16 packets and
// more. Single runs differ by a factor of three, so the mean of 20 counts. The race detector leaves time for few.
func TestSharesOfManySubflows(t *testing.T) {
	runs, least, most := 20, 0.6, 1.2
	if racetest.On {
		runs, least, most = 3, 0.4, 1.6
	}
	for _, subflows := range []int{4, 8} {
		if reno := meanOf(t, 3, larger, "reno", "reno", subflows, 1); reno < 0.9*float64(subflows) {
			t.Errorf("uncoupled Reno with %d subflows: %.2f", subflows, reno)
		}
		for _, control := range []string{"lia", "olia", "balia"} {
			if ratio := meanOf(t, runs, larger, control, "reno", subflows, 1); ratio < least || ratio > most {
				t.Errorf("%s with %d subflows: %.2f", control, subflows, ratio)
			}
		}
	}
}

// The papers' equations assume that each packet is lost with the same probability, whichever subflow sends it. Where that
// holds, OLIA takes as much as a TCP connection, however many subflows there are. LIA and BALIA take a little more, because
// they grow faster while windows differ.
func TestSharesUnderRandomLoss(t *testing.T) {
	runs, most := 6, map[string]float64{"lia": 1.45, "olia": 1.15, "balia": 1.4}
	const least = 0.85
	if racetest.On {
		runs = 2
	}
	wide := line{service: 10, trip: 40_000, room: math.Inf(1), loss: 0.0005}
	for _, subflows := range []int{2, 4, 8} {
		for _, control := range []string{"lia", "olia", "balia"} {
			p := plan{control: control, beside: "reno", others: 1, after: 100, during: 300}
			if ratio := meanOfPlan(t, runs, wide, p, subflows); ratio < least || ratio > most[control] {
				t.Errorf("%s with %d subflows: %.2f", control, subflows, ratio)
			}
		}
	}
}

// A queue that drops what does not fit takes packets of several subflows at a time. So for each packet, a connection with many
// subflows loses more often than a TCP connection. By OLIA's equations, the sum of its windows goes with the root of that, as
// TCP's window does, whatever the number of subflows. That explains its share.
func TestSharesFollowLosses(t *testing.T) {
	runs, near := 6, 0.15
	if racetest.On {
		runs, near = 2, 0.5
	}
	for _, subflows := range []int{2, 4, 8} {
		var own, other tally
		owns, others := repeat(runs, larger, plan{control: "olia", beside: "reno", others: 1, after: 200, during: 200}, subflows)
		for i := range runs {
			own.add(tally{}, owns[i], 1)
			other.add(tally{}, others[i], 1)
		}
		more := own.losses / own.packets / (other.losses / other.packets)
		share, explained := own.packets/other.packets, 1/math.Sqrt(more)
		t.Logf("%d subflows: %.2f times as many losses for each packet explain a share of %.2f; it is %.2f", subflows, more, explained, share)
		if more < 1.2 || math.Abs(share/explained-1) > near {
			t.Errorf("%d subflows: %.2f times as many losses for each packet explain a share of %.2f; it is %.2f", subflows, more, explained, share)
		}
	}
}

// Where windows are half as large, the coupled algorithms take less than half of what uncoupled Reno does.
func TestSharesOfManySmallSubflows(t *testing.T) {
	on := line{service: 300, trip: 40_000, room: 40_000 / 300}
	for _, subflows := range []int{4, 8} {
		reno := mean(t, on, "reno", "reno", subflows, 1)
		for _, control := range []string{"lia", "olia", "balia"} {
			if ratio := mean(t, on, control, "reno", subflows, 1); ratio < 0.4 || ratio > reno/2 {
				t.Errorf("%s with %d subflows: %.2f, uncoupled Reno %.2f", control, subflows, ratio, reno)
			}
		}
	}
}
