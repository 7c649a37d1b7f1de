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
	s.samples[s.next] = steadySample{elapsed, bytes, f.pressed()}
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
	early, late := s.mean(0), s.mean(steadyHalf)
	return s.mean(0, steadyHalf), late <= steadyGrowth*early || s.age >= SteadyMost
}

// mean returns the rate of the halves that begin at these samples, in bits a second. 0 is the earliest sample.
func (s *Steady) mean(from ...int) float64 {
	var bytes uint64
	var over time.Duration
	for _, first := range from {
		for i := range steadyHalf {
			x := &s.samples[(s.next+first+i)%len(s.samples)]
			bytes += x.bytes
			over += x.elapsed
		}
	}
	if over == 0 {
		return 0
	}
	return 8 * float64(bytes) / over.Seconds()
}

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
