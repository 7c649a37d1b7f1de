package measure

import "time"

// Fall tells whether the network lets a subflow carry much less than before, as soon as that is certain enough. It is a
// cumulative sum, as Evidence is: what is missing of the usual rate adds to it, and what is not takes from it. The swings of
// TCP's windows do not add up, because a sum never falls below zero.
//
// A program that sends less, or a scheduler that uses another subflow, leaves neither a queue nor more losses. So there must
// be some since the rate is low, or losses when it fell.
//
// A rate that stays low for long becomes the usual one.
type Fall struct {
	usual, recent float64       // bits a second
	age           time.Duration // of the usual rate
	sum           float64       // seconds
	low           time.Duration // since the sum was last zero

	usualLosses     float64 // samples with losses in a second
	losses          float64 // samples with losses since the sum was zero, or shortly before
	expected        float64 // likewise, by the usual losses of as many packets
	trips           float64 // round trips' worth of time in samples with losses
	arrived, queued int     // samples with data since the sum was last zero, and those of them with a queue
}

const (
	// The usual rate is an average over usualOver, once it is usualAfter old. The recent one is an average over recentOver.
	usualOver  = 6 * time.Second
	usualAfter = 4 * time.Second
	recentOver = 400 * time.Millisecond
	// Less than dips of the usual rate adds to the sum, as much as is missing. fallen is the sum at which it fell. A subflow
	// that keeps nothing has fallen within 1.3 s, one that keeps a third within 3 s.
	dips   = 0.6
	fallen = 0.5
	// lowFor is the time after which a low rate is usual.
	lowFor = 10 * time.Second
	// Of the samples with data, fallQueued must have a queue, or fallLosses must have losses, also in about lossesOver before.
	fallQueued = 0.5
	// They must be fallUnusual times as many as usual, and last for fallTrips round trips: a window that is much too large loses
	// packets for longer than one that is a little too large.
	fallLosses  = 2.5
	fallUnusual = 3
	fallTrips   = 1.8
	lossesOver  = time.Second
	// After a fall a queue counts from queueAfter on, when what was queued before has arrived.
	queueAfter = 300 * time.Millisecond
)

// Take adds one sample, taken elapsed after the previous one.
func (f *Fall) Take(elapsed time.Duration, flows Flowing) {
	if elapsed <= 0 {
		return
	}
	rate := 8 * float64(flows.Received+flows.Acked) / elapsed.Seconds()
	f.recent += (rate - f.recent) * min(1, elapsed.Seconds()/recentOver.Seconds())
	f.lose(elapsed, rate, flows)
	if f.age >= usualAfter {
		f.sum = min(max(0, f.sum+(dips-f.recent/max(f.usual, 1))*elapsed.Seconds()), 2*fallen)
	}
	if f.sum == 0 {
		f.low, f.arrived, f.queued = 0, 0, 0
		f.age += elapsed
		f.usual += (rate - f.usual) * min(1, elapsed.Seconds()/min(usualOver, f.age).Seconds())
		return
	}
	if f.low += elapsed; f.low >= lowFor {
		*f = Fall{recent: f.recent, losses: f.losses}
	}
	if f.low >= queueAfter && rate > 0 {
		f.arrived++
		if flows.Queued() || flows.Acked > flows.Received && flows.Limited {
			f.queued++
		}
	}
}

// lose counts losses.
func (f *Fall) lose(elapsed time.Duration, rate float64, flows Flowing) {
	if f.sum == 0 {
		keeps := max(0, 1-elapsed.Seconds()/lossesOver.Seconds())
		f.losses *= keeps
		f.expected *= keeps
		f.trips *= keeps
	}
	f.expected += f.usualLosses * elapsed.Seconds() * rate / max(f.usual, rate, 1)
	lost := 0.0
	if flows.Lossy {
		lost = 1
		f.trips += elapsed.Seconds() / max(flows.Trip, time.Millisecond).Seconds()
	}
	f.losses += lost
	if f.sum == 0 {
		f.usualLosses += (lost/elapsed.Seconds() - f.usualLosses) * min(1, elapsed.Seconds()/min(usualOver, f.age+elapsed).Seconds())
	}
}

// Rates returns the usual rate and the recent one, in bits a second. The usual one is 0 if it is not known yet.
func (f *Fall) Rates() (usual, recent float64) {
	if f.age < usualAfter {
		return 0, f.recent
	}
	return f.usual, f.recent
}

// Has reports whether the rate fell by the network's doing, and is low.
func (f *Fall) Has() bool { return f.sum >= fallen && f.recent < dips*f.usual && f.Signs() }

// Signs reports whether a queue or losses since the rate is low show that the network is the reason.
func (f *Fall) Signs() bool {
	queued := f.arrived >= 3 && float64(f.queued) >= fallQueued*float64(f.arrived)
	return queued || f.losses >= max(fallLosses, fallUnusual*f.expected) && f.trips >= fallTrips
}

// Since returns for how long the rate has been low.
func (f *Fall) Since() time.Duration { return f.low }

// Excuse has what is missing until now not count.
func (f *Fall) Excuse() { f.sum, f.low, f.arrived, f.queued = 0, 0, 0, 0 }
