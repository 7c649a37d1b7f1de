package measure

import "math"

// Sharing compares what a subflow gained with what another lost, each time that the subflow began or ceased to carry bulk
// traffic beside the other. If both go through one bottleneck, the other loses about what the subflow gains. Each time is a
// pair: the same connection with and without the subflow. Other traffic on a path also changes what it gives, but not again
// and again by what the subflow gains, so several pairs must agree.
type Sharing struct {
	shares [mostPairs]float64 // of the subflow's gain that the other lost
	n      int                // of them
	next   int                // the place of the next pair
}

const (
	mostPairs = 8
	// LeastPairs is the number of pairs from which a relation is found.
	LeastPairs = 3
	// Of what a subflow gains, the other loses at least sharedFrom if they share their bottleneck. It loses at most apartTo if
	// they do not.
	sharedFrom = 0.7
	apartTo    = 0.3
	// lostMost bounds a share, so that a single pair with little gain does not decide.
	lostMost = 3
)

// tQuantiles are the quantiles of Student's t distribution for intervals that hold the mean with 95 %, from two degrees of
// freedom on.
var tQuantiles = [...]float64{4.303, 3.182, 2.776, 2.571, 2.447, 2.365}

// Relation is what is known of the bottlenecks of two paths.
type Relation uint8

// The relations of the bottlenecks of two paths.
const (
	Unknown Relation = iota
	Shared
	Apart
)

// String returns the relation as a word.
func (r Relation) String() string {
	switch r {
	case Shared:
		return "shared"
	case Apart:
		return "apart"
	default:
		return "unknown"
	}
}

// Shares is the result of the comparisons of two paths.
type Shares struct {
	Relation Relation
	Pairs    int
	// Lost is the mean share of a subflow's gain that the other lost. The mean lies between Least and Most with a probability
	// of 95 %. They are zero if there are too few pairs.
	Lost, Least, Most float64
}

// Add adds a pair: the rate that the subflow got, and the change of the other's rate when it came. It does nothing if the
// subflow got nothing.
func (s *Sharing) Add(gain, change float64) {
	if gain <= 0 {
		return
	}
	s.shares[s.next] = min(max(-change/gain, -lostMost), lostMost)
	s.next = (s.next + 1) % mostPairs
	s.n = min(s.n+1, mostPairs)
}

// Result returns what the last pairs show.
func (s *Sharing) Result() Shares {
	r := Shares{Pairs: s.n}
	if s.n < LeastPairs {
		return r
	}
	n := float64(s.n)
	squares := 0.0
	for _, x := range s.shares[:s.n] {
		r.Lost += x / n
	}
	for _, x := range s.shares[:s.n] {
		squares += (x - r.Lost) * (x - r.Lost)
	}
	half := tQuantiles[s.n-LeastPairs] * math.Sqrt(squares/(n-1)/n)
	r.Least, r.Most = r.Lost-half, r.Lost+half
	switch {
	case r.Least >= sharedFrom:
		r.Relation = Shared
	case r.Most <= apartTo:
		r.Relation = Apart
	}
	return r
}
