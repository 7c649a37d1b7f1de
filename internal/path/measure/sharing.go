package measure

import "math"

// Sharing finds out whether two subflows share a bottleneck. Each time one of them begins or ceases to carry bulk
// traffic beside the other, it compares what the one gained with what the other lost. If both go through one
// bottleneck, the two are about equal. Other traffic on a path also changes what the path gives, but not again and
// again by what a subflow gains. So several comparisons (pairs) must agree.
type Sharing struct {
	shares [mostPairs]float64 // lost by the other, as shares of the subflow's gain
	n      int                // number of shares
	next   int                // place of the next one
}

const (
	// mostPairs is the number of pairs that are remembered.
	mostPairs = 8
	// LeastPairs is the number of pairs that a result needs.
	LeastPairs = 3
	// sharedFrom is the share of a subflow's gain that the other loses at least if they share a bottleneck.
	sharedFrom = 0.7
	// apartTo is the share of a subflow's gain that the other loses at most if they do not.
	apartTo = 0.3
	// lostMost bounds a share, so that a pair with little gain does not decide alone.
	lostMost = 3
)

// tQuantiles are the quantiles of Student's t distribution for intervals that hold the mean with a probability of
// 95 %, from two degrees of freedom on.
var tQuantiles = [...]float64{4.303, 3.182, 2.776, 2.571, 2.447, 2.365}

// Relation tells whether two paths share a bottleneck.
type Relation uint8

const (
	// Unknown means that too few pairs are known, or that they disagree.
	Unknown Relation = iota
	// Shared means that the paths share a bottleneck.
	Shared
	// Apart means that they do not.
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

// Shares is the result of comparing two paths.
type Shares struct {
	Relation Relation
	Pairs    int
	// Lost is the mean share of a subflow's gain that the other lost. With a probability of 95 % the true mean is
	// between Least and Most. All three are zero if there are too few pairs.
	Lost, Least, Most float64
}

// Add adds a pair: gain is the rate that the subflow got, and change the change of the other's rate. It does nothing
// if the subflow got nothing.
func (s *Sharing) Add(gain, change float64) {
	if gain <= 0 {
		return
	}
	s.shares[s.next] = min(max(-change/gain, -lostMost), lostMost)
	s.next = (s.next + 1) % mostPairs
	s.n = min(s.n+1, mostPairs)
}

// Result returns what the remembered pairs show.
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
