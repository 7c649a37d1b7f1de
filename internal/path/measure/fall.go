package measure

import "time"

// Fall finds out whether the network lets a subflow carry much less than before, as soon as that is certain enough.
// Like Evidence it is a cumulative sum: what is missing from the usual rate adds to it, and what is not missing is
// subtracted. The swings of TCP's windows do not add up, because the sum never falls below zero.
//
// The network is the reason only if there has been a queue since the rate fell, or losses when it fell. A program
// that sends less, or a scheduler that uses another subflow, causes neither. If no data comes at all and nothing was
// lost, the program has paused, and what is missing does not count.
//
// A rate that stays low for long becomes the usual rate.
type Fall struct {
	usual, recent float64       // bits a second
	age           time.Duration // of the usual rate
	sum           float64       // seconds
	low           time.Duration // time since the sum was last zero
	dry           time.Duration // time since data last arrived

	usualLosses     float64 // samples with losses a second, usually
	losses          float64 // samples with losses since shortly before the sum was last zero
	expected        float64 // what losses would be at the usual rate of losses
	trips           float64 // round trips in the time of samples with losses
	arrived, queued int     // samples with data since the sum was last zero, and those with a queue
}

const (
	// usualOver is the time over which the usual rate is averaged.
	usualOver = 6 * time.Second
	// usualAfter is the age from which the usual rate is known.
	usualAfter = 4 * time.Second
	// recentOver is the time over which the recent rate is averaged.
	recentOver = 400 * time.Millisecond
	// dips is the share of the usual rate below which the recent rate adds to the sum, by as much as is missing.
	dips = 0.6
	// fallen is the sum at which the rate has fallen. A subflow that keeps nothing has fallen within 1.3 s, and one
	// that keeps a third within 3 s.
	fallen = 0.5
	// lowFor is the time after which a low rate is the usual one.
	lowFor = 10 * time.Second
	// fallQueued is the share of samples with data that must have a queue to show that the network is the reason.
	fallQueued = 0.5
	// fallLosses is the number of samples with losses that shows it, too.
	fallLosses = 2.5
	// fallUnusual is the multiple of the usual losses that they must reach as well.
	fallUnusual = 3
	// fallTrips is the number of round trips that they must last. A window that is much too large loses packets for
	// longer than one that is a little too large.
	fallTrips = 1.8
	// pauses is the time without data, at least a round trip, that shows a pause of the program.
	pauses = 300 * time.Millisecond
	// lossesOver is the time over which losses before the fall are remembered.
	lossesOver = time.Second
	// queueAfter is the time after a fall from which a queue counts. What was queued before has arrived by then.
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
	if rate > 0 {
		f.dry = 0
	} else if f.dry += elapsed; f.dry >= max(pauses, flows.Trip) && !f.losesMore() {
		f.Excuse()
		return
	}
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

// Rates returns the usual rate and the recent one, in bits a second. The usual rate is 0 while it is not known.
func (f *Fall) Rates() (usual, recent float64) {
	if f.age < usualAfter {
		return 0, f.recent
	}
	return f.usual, f.recent
}

// Has reports whether the network made the rate fall, and the rate is still low.
func (f *Fall) Has() bool { return f.sum >= fallen && f.recent < dips*f.usual && f.Signs() }

// Signs reports whether a queue or losses show that the network is the reason for a low rate.
func (f *Fall) Signs() bool {
	queued := f.arrived >= 3 && float64(f.queued) >= fallQueued*float64(f.arrived)
	return queued || f.losesMore()
}

// losesMore reports whether there were many more losses than usual.
func (f *Fall) losesMore() bool {
	return f.losses >= max(fallLosses, fallUnusual*f.expected) && f.trips >= fallTrips
}

// Since returns how long the rate has been low.
func (f *Fall) Since() time.Duration { return f.low }

// Excuse forgets what was missing until now.
func (f *Fall) Excuse() { f.sum, f.low, f.arrived, f.queued = 0, 0, 0, 0 }
