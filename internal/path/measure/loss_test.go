package measure_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/path/measure"
)

// others lists networks other than those by which the constants of loss.go were chosen.
func others() (all []network) {
	for _, rate := range []float64{2e6, 7e6, 17e6, 40e6, 90e6, 200e6} {
		for _, trip := range []time.Duration{10 * ms, 32 * ms, 100 * ms, 200 * ms} {
			all = append(all, network{name: fmt.Sprintf("%v Mbit/s, %v", rate/1e6, trip), rate: rate, trip: trip})
		}
	}
	return all
}

// shares are shares of lost packets, or ratios of them, in order.
type shares []float64

func (s shares) at(part float64) float64 { return s[int(part*float64(len(s)-1))] }

func (s shares) String() string {
	return fmt.Sprintf("%.4f (%.4f to %.4f)", s.at(0.5), s.at(0.1), s.at(0.9))
}

// score runs transfers and returns what the receiver and the sender estimate every five seconds. If packets are lost,
// it returns the ratios to the true losses. Otherwise it returns the estimates less the losses of the path's own queue.
func (n network) score(runs uint64, long time.Duration) (receiver, sender shares) {
	for seed := range runs {
		var o observer
		lost, out, samples := 0.0, 0.0, 0
		n.run(seed+200, long, func(s sample) bool {
			o.see(s)
			lost, out = lost+float64(s.lost), out+float64(s.out)
			if samples++; samples%50 > 0 {
				return true
			}
			in, knowsIn := o.arrivals.Lost(s.at, n.trip, s.trip)
			sent, knowsSent := o.sent.Lost(s.at)
			switch truth := lost / out; {
			case samples <= 100 || !knowsIn || !knowsSent:
			case n.loss == 0:
				receiver, sender = append(receiver, in-truth), append(sender, sent-truth)
			case truth > 0:
				receiver, sender = append(receiver, in/truth), append(sender, sent/truth)
			}
			lost, out = 0, 0
			return true
		})
	}
	slices.Sort(receiver)
	slices.Sort(sender)
	return receiver, sender
}

// Both ends know about how many packets are lost, at any rate and round trip, whether the sender slows down or not.
func TestLossIsKnown(t *testing.T) {
	type bounds struct{ least, most float64 }
	for _, c := range []struct {
		name   string
		set    func(*network)
		median bounds // of the receiver's ratio to the truth, on each network
		most   bounds // eight of ten, on all networks together
	}{
		{"1 %", func(n *network) { n.loss = 0.01 }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
		{"3 %", func(n *network) { n.loss = 0.03 }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
		{"5 %", func(n *network) { n.loss = 0.05 }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
		{"3 % in bursts of three", func(n *network) { n.loss, n.burst = 0.03, 3 }, bounds{0.2, 1.2}, bounds{0.15, 1}},
		{"0.5 %, steady", func(n *network) { n.loss, n.steady = 0.005, true }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
		{"1 %, steady", func(n *network) { n.loss, n.steady = 0.01, true }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
		{"2 %, steady", func(n *network) { n.loss, n.steady = 0.02, true }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
		{"5 %, steady", func(n *network) { n.loss, n.steady = 0.05, true }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
		{"10 %, steady", func(n *network) { n.loss, n.steady = 0.1, true }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
		{"5 % in bursts of three, steady", func(n *network) { n.loss, n.burst, n.steady = 0.05, 3, true }, bounds{0.2, 1.2}, bounds{0.2, 1}},
		{"2 %, and 1 % overtaken by 5 ms", func(n *network) { n.loss, n.late, n.lateBy = 0.02, 0.01, 5*ms }, bounds{0.6, 1.8}, bounds{0.5, 1.6}},
		{"a stream of 0.8 Mbit/s, 3 %", func(n *network) { n.limited, n.loss = 0.8e6, 0.03 }, bounds{0.6, 1.6}, bounds{0.5, 1.6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all shares
			for _, n := range others() {
				c.set(&n)
				receiver, sender := n.score(2, 100*time.Second)
				if got := receiver.at(0.5); got < c.median.least || got > c.median.most {
					t.Errorf("%s: the receiver finds %v of the losses, want %.1f to %.1f", n.name, receiver, c.median.least, c.median.most)
				}
				if got := sender.at(0.5); got < 0.8 || got > 1.2 {
					t.Errorf("%s: the sender finds %v of the losses", n.name, sender)
				}
				all = append(all, receiver...)
			}
			slices.Sort(all)
			t.Logf("the receiver finds %v of the losses", all)
			if all.at(0.1) < c.most.least || all.at(0.9) > c.most.most {
				t.Errorf("want %.1f to %.1f", c.most.least, c.most.most)
			}
		})
	}
}

// Packets that are overtaken do not count as lost, except in gaps of about a round trip, or of about as many packets as the
// path holds.
func TestOvertakenIsNotLost(t *testing.T) {
	for _, c := range []struct {
		name        string
		late        float64
		lateBy      time.Duration
		most, short float64 // what the receiver finds lost; short: if the gaps last for a quarter of a round trip or more
	}{
		{"1 % by 5 ms", 0.01, 5 * ms, 0.005, 0.015},
		{"5 % by 5 ms", 0.05, 5 * ms, 0.005, 0.035},
		{"5 % by 10 ms", 0.05, 10 * ms, 0.006, 0.035},
	} {
		for _, steady := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, steady %v", c.name, steady), func(t *testing.T) {
				for _, n := range others() {
					n.late, n.lateBy, n.hasty, n.steady = c.late, c.lateBy, true, steady
					receiver, sender := n.score(2, 100*time.Second)
					most := c.most
					if n.trip < 5*c.lateBy || n.rate*n.trip.Seconds() < 30*segment {
						most = c.short
					}
					if got := receiver.at(0.5); got > most {
						t.Errorf("%s: the receiver finds %v lost, want at most %v", n.name, receiver, most)
					}
					if got := sender.at(0.5); got > 0.001 {
						t.Errorf("%s: the sender finds %v lost", n.name, sender)
					}
				}
			})
		}
	}
}

// The estimates are right for transfers between two kernels (Linux 6.18) over lab/emulink. testdata/loss has the counters
// that the receiver and the sender read every tenth of a second.
func TestRecordedLoss(t *testing.T) {
	for _, c := range []struct {
		file        string
		least, most float64 // what the receiver finds, in the median from the sixth second on
		sent        float64 // what the sender finds
	}{
		{"bbr-10-mbit-5-percent", 0.04, 0.06, 0.05},
		{"bbr-20-mbit-5-percent", 0.04, 0.07, 0.05},
		{"bbr-100-mbit-5-percent", 0.03, 0.075, 0.05},
		{"bbr-100-mbit-2-percent", 0.015, 0.03, 0.02},
		{"bbr-100-mbit-1-percent", 0.007, 0.013, 0.01},
		{"bbr-10-mbit-bursts", 0.008, 0.03, 0.03},
		{"bbr-100-mbit-overtaken", 0, 0.001, 0},
		{"cubic-10-mbit-3-percent", 0.02, 0.04, 0.025},
		{"cubic-30-mbit-half-percent", 0.003, 0.006, 0.004},
		{"cubic-50-mbit-3-percent", 0.02, 0.045, 0.026},
		{"cubic-10-mbit-lost-and-overtaken", 0.007, 0.035, 0.009}, // a gap of 10 ms lasts for few packets
		{"cubic-20-mbit-overtaken", 0, 0.005, 0},
		{"cubic-100-mbit-overtaken", 0, 0.001, 0},
	} {
		t.Run(c.file, func(t *testing.T) {
			text, err := os.ReadFile("testdata/loss/" + c.file + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			var arrivals measure.Arrivals
			var sent measure.Sent
			var receiver, sender shares
			now := beginning
			for line := range strings.Lines(string(text)) {
				if line[0] == '#' {
					continue
				}
				var seconds float64
				var in, late, trip, base, out, again, needless uint64
				if _, err := fmt.Sscan(line, &seconds, &in, &late, &trip, &base, &out, &again, &needless); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				elapsed := time.Duration(seconds * float64(time.Second))
				now = now.Add(elapsed)
				arrivals.Take(now, elapsed, in, late)
				sent.Take(now, out, again, needless)
				if now.Sub(beginning) < 5*time.Second {
					continue
				}
				p, knowsIn := arrivals.Lost(now, time.Duration(base)*time.Microsecond, time.Duration(max(base, trip))*time.Microsecond)
				q, knowsOut := sent.Lost(now)
				if !knowsIn || !knowsOut {
					t.Fatalf("after %v, too little data", now.Sub(beginning))
				}
				receiver, sender = append(receiver, p), append(sender, q)
			}
			slices.Sort(receiver)
			slices.Sort(sender)
			t.Logf("the receiver finds %v lost, the sender %v", receiver, sender)
			if got := receiver.at(0.5); got < c.least || got > c.most {
				t.Errorf("the receiver finds %.4f lost, want %v to %v", got, c.least, c.most)
			}
			if got := sender.at(0.5); math.Abs(got-c.sent) > 0.001+0.2*c.sent {
				t.Errorf("the sender finds %.4f lost, want %v", got, c.sent)
			}
		})
	}
}
