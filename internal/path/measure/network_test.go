package measure_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// network models one path with one bulk transfer over it, packet by packet in virtual time. The sender is a simple
// Reno with SACK: it sends a window in each round trip, lowers it once in a round trip with losses, and retransmits a
// round trip later. The receiver counts as Linux does: a packet comes after a gap if one before it is missing.
type network struct {
	name    string
	rate    float64 // bit/s
	trip    time.Duration
	loss    float64 // share of packets
	burst   float64 // mean number of packets lost in a row; 0: each by itself
	late    float64 // share of packets that are overtaken
	lateBy  time.Duration
	limited float64 // bit/s that the program sends; 0: as much as it can
	hasty   bool    // the sender takes packets that are overtaken by three for lost
	steady  bool    // the sender ignores losses, like BBR
}

const segment = 1400 * 8 // bits

// sample holds the changes of the counters in a tenth of a second.
type sample struct {
	at       time.Time
	elapsed  time.Duration
	trip     time.Duration // with the queue
	in       uint64        // packets that arrived
	late     uint64        // of them, after a gap
	out      uint64        // packets sent
	again    uint64        // of them, sent again
	needless uint64        // reports of packets that had arrived when they came again
	lost     uint64        // packets that were lost
	received uint64        // bytes
}

type transfer struct {
	network
	random    *rand.Rand
	window    float64
	threshold float64
	lowered   time.Duration // when the window was last lowered
	losing    bool          // in a burst
	repairs   []packet      // that the sender will send again
	overtaken []packet      // that will arrive
	copies    []packet      // that will be sent, arrive and be reported although the receiver has them
	next      uint64
	missing   []uint64 // packets that the receiver waits for, in order
	backoff   int
	now       time.Duration
	counts    sample
}

// packet is one packet and the time when something happens to it.
type packet struct {
	at time.Duration
	id uint64
}

var beginning = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// run simulates the transfer for that long and calls see for each sample, until it returns false.
func (n network) run(seed uint64, long time.Duration, see func(sample) bool) {
	t := &transfer{network: n, random: rand.New(rand.NewPCG(seed, uint64(n.rate))), window: 10, threshold: math.MaxFloat64}
	last := time.Duration(0)
	for next := time.Duration(0); t.now < long; {
		if t.now >= next {
			s := t.counts
			s.at, s.elapsed, s.trip, s.received = beginning.Add(t.now), t.now-last, t.roundTrip(), s.in*segment/8
			if last > 0 && !see(s) {
				return
			}
			t.counts = sample{}
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
	t.counts.out++
	for len(t.repairs) > 0 && t.repairs[0].at <= t.now {
		again := t.repairs[0]
		t.repairs = t.repairs[1:]
		t.counts.again++
		t.counts.out++
		switch {
		case !t.dropped():
			t.arrive(again.id)
		case t.steady:
			t.counts.lost++
			t.repairs = append(t.repairs, packet{t.now + trip, again.id})
		default:
			t.counts.lost++
			t.repairs = append([]packet{again}, t.repairs...)
			t.timeout()
		}
	}
	for len(t.overtaken) > 0 && t.overtaken[0].at <= t.now {
		t.arrive(t.overtaken[0].id)
		t.overtaken = t.overtaken[1:]
	}
	for len(t.copies) > 0 && t.copies[0].at <= t.now {
		t.counts.out++
		t.counts.again++
		t.counts.in++
		t.counts.needless++
		t.copies = t.copies[1:]
	}
	id := t.next
	t.next++
	overflows := t.window > t.most()
	if t.dropped() || overflows {
		t.lost(id, gap, trip)
		return
	}
	if t.random.Float64() < t.late {
		t.missing = append(t.missing, id)
		t.overtaken = append(t.overtaken, packet{t.now + t.lateBy, id})
		if t.hasty && t.lateBy > 3*gap {
			t.copies = append(t.copies, packet{t.now + trip, id})
		}
	} else {
		t.arrive(id)
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

// arrive lets a packet arrive.
func (t *transfer) arrive(id uint64) {
	t.counts.in++
	if len(t.missing) > 0 && t.missing[0] < id {
		t.counts.late++
	}
	if i, missed := slices.BinarySearch(t.missing, id); missed {
		t.missing = slices.Delete(t.missing, i, i+1)
	}
}

// lost loses a packet. The sender learns of it when the next one arrives, which may take long in a stream.
func (t *transfer) lost(id uint64, gap, trip time.Duration) {
	t.counts.lost++
	t.missing = append(t.missing, id)
	if t.limited == 0 {
		gap = 0
	}
	t.repairs = append(t.repairs, packet{t.now + gap + trip, id})
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
	t.counts.again += uint64(len(t.repairs))
	t.counts.out += uint64(len(t.repairs))
	for _, again := range t.repairs {
		t.arrive(again.id)
	}
	t.repairs = t.repairs[:0]
	t.threshold = max(2, t.window/2)
	t.window = 2
}
