package measure_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// networks lists networks of all sorts. The thresholds were chosen on those of 10 Mbit/s and 40 ms.
func networks() (all []network) {
	for _, rate := range []float64{0.5e6, 2e6, 10e6, 30e6, 100e6} {
		for _, trip := range []time.Duration{8 * ms, 40 * ms, 100 * ms, 250 * ms} {
			all = append(all, network{name: fmt.Sprintf("%v Mbit/s, %v", rate/1e6, trip), rate: rate, trip: trip})
		}
	}
	return all
}

// observer sees a transfer as the agent does.
type observer struct {
	arrivals measure.Arrivals
	sent     measure.Sent
	goodput  measure.Goodput
	in, out  measure.Evidence
	trip     time.Duration
	now      time.Time
}

func (o *observer) see(s sample) {
	o.now, o.trip = s.at, s.trip
	o.arrivals.Take(s.at, s.elapsed, s.in, s.late)
	o.sent.Take(s.at, s.out, s.again, s.needless)
	o.goodput.Take(s.at, s.elapsed, s.received, 0)
	o.in.Take(s.elapsed, s.trip, s.in, s.late > 0)
	o.out.Take(s.elapsed, s.trip, s.out, s.again > 0)
}

// alarms counts how often the receiver's and the sender's evidence sufficed, except while the transfer was unharmed.
func (n network) alarms(seed uint64, long time.Duration) (receiver, sender int) {
	o := observer{in: measure.Evidence{Lingers: true}}
	n.run(seed, long, func(s sample) bool {
		o.see(s)
		_, rate := o.goodput.Rates(o.now)
		count := func(e *measure.Evidence, p float64) (found int) {
			if e.IsBad() {
				e.Reset()
				if !measure.Unharmed(p, rate, o.trip) {
					return 1
				}
			}
			return 0
		}
		p, _ := o.arrivals.Seems(o.now, o.trip)
		receiver += count(&o.in, p)
		p, _ = o.sent.Seems(o.now)
		sender += count(&o.out, p)
		return true
	})
	return receiver, sender
}

// Paths that lose little are not found bad, at any rate and round trip, although their own queues overflow again and
// again. At 1 %, close to what is bearable, it happens about once in half an hour. A burst counts once, and packets
// that are overtaken are no loss.
func TestGoodPathsAreNotFoundBad(t *testing.T) {
	const long = 20 * time.Minute
	for _, c := range []struct {
		name string
		set  func(*network)
		most int // alarms of both sides on all networks, in about five hours
	}{
		{"nothing lost", func(*network) {}, 0},
		{"0.3 % lost", func(n *network) { n.loss = 0.003 }, 0},
		{"1 % lost", func(n *network) { n.loss = 0.01 }, 20},
		{"1 % lost in bursts of four", func(n *network) { n.loss, n.burst = 0.01, 4 }, 20},
		{"1 % overtaken by 5 ms", func(n *network) { n.late, n.lateBy = 0.01, 5*time.Millisecond }, 0},
		{"5 % overtaken by 10 ms", func(n *network) { n.late, n.lateBy = 0.05, 10*time.Millisecond }, 10},
		{"a stream of 300 kbit/s, 0.5 % lost", func(n *network) { n.limited, n.loss = 300e3, 0.005 }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			receivers, senders := 0, 0
			for _, n := range networks() {
				c.set(&n)
				receiver, sender := n.alarms(1, min(long, time.Duration(float64(long)*10e6/n.rate))) // fast paths have more packets
				receivers, senders = receivers+receiver, senders+sender
				if receiver+sender > 0 {
					t.Logf("%s: %d, %d", n.name, receiver, sender)
				}
			}
			t.Logf("found bad by the receiver %d times, by the sender %d times", receivers, senders)
			if receivers+senders > c.most {
				t.Errorf("more than %d times", c.most)
			}
		})
	}
}

// Paths that lose too much are found bad in seconds. It takes longer if few packets come, on slow and long paths or
// because bursts of losses stop the transfer, and if almost every sample has a loss.
func TestLossyPathsAreFoundBad(t *testing.T) {
	const runs = 40
	for _, n := range networks() {
		for _, c := range []struct {
			loss, burst float64
			within      time.Duration // nine of ten
		}{{0.03, 0, 100 * time.Second}, {0.05, 0, 20 * time.Second}, {0.1, 0, 20 * time.Second}, {0.1, 3, 4 * time.Minute}} {
			if c.burst > 0 && n.rate > 10e6 {
				continue // the receiver needs minutes
			}
			if n.rate == 10e6 && n.trip == 40*time.Millisecond {
				c.within /= 4
			}
			t.Run(fmt.Sprintf("%s, %v lost in bursts of %v", n.name, c.loss, max(1, c.burst)), func(t *testing.T) {
				n.loss, n.burst = c.loss, c.burst
				var receivers, senders []time.Duration
				for seed := range uint64(runs) {
					receiver, sender := 5*time.Minute, 5*time.Minute
					o := observer{in: measure.Evidence{Lingers: true}}
					n.run(seed, 5*time.Minute, func(s sample) bool {
						o.see(s)
						at := s.at.Sub(beginning)
						if o.in.IsBad() {
							receiver = min(receiver, at)
						}
						if o.out.IsBad() {
							sender = min(sender, at)
						}
						return max(receiver, sender) == 5*time.Minute
					})
					receivers, senders = append(receivers, receiver), append(senders, sender)
				}
				slices.Sort(receivers)
				slices.Sort(senders)
				t.Logf("median and nine of ten: receiver %v %v, sender %v %v", receivers[runs/2], receivers[runs*9/10], senders[runs/2], senders[runs*9/10])
				if late := max(receivers[runs*9/10], senders[runs*9/10]); late > c.within {
					t.Errorf("nine of ten take %v, want at most %v", late, c.within)
				}
			})
		}
	}
}
