package measure

import "time"

// Steady finds the rate of a subflow that has just begun to carry, as soon as the rate has ceased to grow.
type Steady struct {
	samples [2 * steadyHalf]steadySample
	next    int           // place of the next sample
	age     time.Duration // time since data first moved
}

type steadySample struct {
	elapsed time.Duration
	bytes   uint64
	pressed bool
	queued  bool
}

const (
	// steadyHalf is half the number of samples that the rate is measured over.
	steadyHalf = 5
	// steadyGrowth is the most by which the rate of the later half may exceed that of the earlier one if it has ceased
	// to grow.
	steadyGrowth = 1.15
	// steadyLeast is the age from which the rate may be known. Slow start is over by then.
	steadyLeast = 1100 * time.Millisecond
	// steadyTrips is the number of round trips for which the same holds.
	steadyTrips = 12
	// fullFor is the time, and fullTrips the number of round trips, for which all data must have waited in a queue to show that
	// the path is full. In a slow start, data may wait as well, but the rate grows.
	fullFor   = 500 * time.Millisecond
	fullTrips = 5
	// SteadyMost is the time after which the rate is known even if it grows.
	SteadyMost = 3 * time.Second
)

// Take adds one sample, taken elapsed after the previous one.
func (s *Steady) Take(elapsed time.Duration, f Flowing) {
	bytes := f.Received + f.Acked
	if s.age == 0 && bytes == 0 || elapsed <= 0 {
		return
	}
	s.age += elapsed
	s.samples[s.next] = steadySample{elapsed, bytes, f.pressed(), f.Queued()}
	s.next = (s.next + 1) % len(s.samples)
}

// pressed reports whether the sample shows that the network is the limit.
func (f *Flowing) pressed() bool {
	if f.Acked > f.Received {
		return f.Limited
	}
	return f.Queued()
}

// Rate returns the rate in bits a second. known is false while the rate may still grow.
func (s *Steady) Rate(trip time.Duration) (rate float64, known bool) {
	if s.age < min(max(steadyLeast, steadyTrips*trip), SteadyMost) {
		return 0, false
	}
	return s.rate(0, len(s.samples)), s.rate(steadyHalf, steadyHalf) <= steadyGrowth*s.rate(0, steadyHalf) || s.age >= SteadyMost
}

// Full returns the rate in bits a second if a queue shows that the path is full. Then the rate is known earlier than by Rate.
// Otherwise ok is false.
func (s *Steady) Full(trip time.Duration) (rate float64, ok bool) {
	over := time.Duration(0)
	for n := 1; n <= len(s.samples); n++ {
		x := s.sample(len(s.samples) - n)
		if !x.queued {
			return 0, false
		}
		if over += x.elapsed; over >= max(fullFor, fullTrips*trip) {
			first, half := len(s.samples)-n, n/2
			return s.rate(first, n), s.rate(first+n-half, half) <= steadyGrowth*s.rate(first, half)
		}
	}
	return 0, false
}

// rate returns the rate of n samples in bits a second. 0 is the earliest sample.
func (s *Steady) rate(first, n int) float64 {
	var bytes uint64
	var over time.Duration
	for i := range n {
		x := s.sample(first + i)
		bytes += x.bytes
		over += x.elapsed
	}
	if over == 0 {
		return 0
	}
	return 8 * float64(bytes) / over.Seconds()
}

// sample returns a sample. 0 is the earliest.
func (s *Steady) sample(i int) *steadySample { return &s.samples[(s.next+i)%len(s.samples)] }

// Pressed reports whether the network limited most of the last samples.
func (s *Steady) Pressed() bool {
	n := 0
	for i := range s.samples {
		if s.samples[i].pressed {
			n++
		}
	}
	return float64(n) >= pressedShare*float64(len(s.samples))
}
