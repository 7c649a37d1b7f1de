package measure_test

import (
	"math"
	"math/rand/v2"
	"time"
)

// network models one path with one bulk transfer over it, packet by packet in virtual time. The sender is a simple
// Reno with SACK: it sends a window in each round trip, lowers it once in a round trip with losses, and retransmits a
// round trip later.
type network struct {
	name    string
	rate    float64 // bit/s
	trip    time.Duration
	loss    float64 // share of packets
	burst   float64 // mean number of packets lost in a row; 0: each by itself
	late    float64 // share of packets that are overtaken
	lateBy  time.Duration
	limited float64 // bit/s that the program sends; 0: as much as it can
	steady  bool    // the sender ignores losses, like BBR
}

const segment = 1400 * 8 // bits

// sample holds the changes of the counters in a tenth of a second.
type sample struct {
	at       time.Time
	elapsed  time.Duration
	trip     time.Duration // with the queue
	in       uint64        // packets that arrived
	late     bool          // some after a gap
	out      uint64        // packets sent
	again    uint64        // of them, sent again
	received uint64        // bytes
}

type transfer struct {
	network
	random          *rand.Rand
	window          float64
	threshold       float64
	lowered         time.Duration // when the window was last lowered
	losing          bool          // in a burst
	gapUntil        time.Duration // packets that arrive until then come after a gap
	repairs         []time.Duration
	backoff         int
	now             time.Duration
	in, out, again_ uint64
	lateSeen        bool
}

var beginning = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// run simulates the transfer for that long and calls see for each sample, until it returns false.
func (n network) run(seed uint64, long time.Duration, see func(sample) bool) {
	t := &transfer{network: n, random: rand.New(rand.NewPCG(seed, uint64(n.rate))), window: 10, threshold: math.MaxFloat64}
	last := time.Duration(0)
	for next := time.Duration(0); t.now < long; {
		if t.now >= next {
			s := sample{
				at: beginning.Add(t.now), elapsed: t.now - last, trip: t.roundTrip(), in: t.in, late: t.lateSeen,
				out: t.out, again: t.again_, received: t.in * segment / 8,
			}
			if last > 0 && !see(s) {
				return
			}
			t.in, t.out, t.again_, t.lateSeen = 0, 0, 0, false
			last, next = t.now, t.now+100*time.Millisecond+time.Duration(t.random.IntN(5))*time.Millisecond
		}
		t.packet()
	}
}

// roundTrip returns the present round trip. What the window has beyond the path's capacity waits in a queue.
func (t *transfer) roundTrip() time.Duration {
	return max(t.trip, time.Duration(t.window*segment/t.rate*float64(time.Second)))
}

// most returns the window that path and queue hold.
func (t *transfer) most() float64 {
	path := t.rate * t.trip.Seconds() / segment
	return path + max(path, 50)
}

func (t *transfer) packet() {
	trip := t.roundTrip()
	gap := time.Duration(float64(trip) / t.window)
	if t.limited > 0 {
		gap = max(gap, time.Duration(segment/t.limited*float64(time.Second)))
	}
	t.now += gap
	t.out++
	for len(t.repairs) > 0 && t.repairs[0] <= t.now {
		t.repairs = t.repairs[1:]
		t.again_++
		t.out++
		if t.dropped() {
			t.timeout()
		} else {
			t.in++
		}
	}
	overflows := t.window > t.most()
	if t.dropped() || overflows {
		t.lost(trip)
		return
	}
	t.in++
	t.lateSeen = t.lateSeen || t.now < t.gapUntil
	if t.random.Float64() < t.late {
		t.gapUntil = max(t.gapUntil, t.now+t.lateBy)
	}
	t.backoff = 0
	if t.window < t.threshold {
		t.window++
	} else {
		t.window += 1 / t.window
	}
	if t.limited > 0 {
		t.window = min(t.window, max(10, t.limited*trip.Seconds()/segment))
	}
}

// dropped reports whether the path drops a packet.
func (t *transfer) dropped() bool {
	if t.burst == 0 {
		return t.random.Float64() < t.loss
	}
	if t.losing {
		t.losing = t.random.Float64() >= 1/t.burst
	} else {
		t.losing = t.random.Float64() < t.loss/t.burst/(1-t.loss)
	}
	return t.losing
}

func (t *transfer) lost(trip time.Duration) {
	t.gapUntil = max(t.gapUntil, t.now+trip)
	t.repairs = append(t.repairs, t.now+trip)
	if t.now-t.lowered < trip && t.lowered > 0 {
		if len(t.repairs) > int(t.window)-3 && !t.steady {
			t.timeout()
		}
		return
	}
	t.lowered = t.now
	if !t.steady {
		t.window = max(2, 0.7*t.window)
		t.threshold = t.window
	} else {
		t.window = max(2, t.rate*t.trip.Seconds()/segment)
		t.threshold = t.window
	}
}

// timeout stops the sender until its timer expires.
func (t *transfer) timeout() {
	t.now += (200*time.Millisecond + t.roundTrip()) << min(t.backoff, 4)
	t.backoff++
	t.again_ += uint64(len(t.repairs))
	t.out += uint64(len(t.repairs))
	t.in += uint64(len(t.repairs))
	t.repairs = t.repairs[:0]
	t.threshold = max(2, t.window/2)
	t.window = 2
}
