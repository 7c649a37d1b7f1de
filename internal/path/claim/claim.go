// Package claim weighs what other members measured of waypoints. A member shares one Claim about each waypoint. A
// claim has coarse classes, computed over several networks of servers, so that it reveals no destination. A reader's
// Book believes a member as far as that member's claims agree with the reader's own measurements.
//
// The package is pure. Its caller verifies the claims' signatures and passes the time in.
package claim

import (
	"fmt"
	"slices"
)

// Claim states what one member measured through one waypoint.
type Claim struct {
	Waypoint string
	Loss     LossClass
	Goodput  GoodputClass
}

// IsZero reports whether the claim says nothing.
func (c Claim) IsZero() bool { return c.Loss == 0 && c.Goodput == 0 }

// LossClass is a range of the share of packets lost. 0 means not measured.
type LossClass uint8

// GoodputClass is a range of the rate of bulk traffic. 0 means not measured.
type GoodputClass uint8

// lossBounds and goodputBounds separate the classes, which begin at 1. Goodput is in bits of payload a second.
var (
	lossBounds    = []float64{0.005, 0.02, 0.05}
	goodputBounds = []float64{1e6, 4e6, 16e6, 64e6, 256e6}
)

// MostLoss and MostGoodput are the highest classes.
const (
	MostLoss    LossClass    = 4
	MostGoodput GoodputClass = 6
)

// LossOf returns the class of a share of packets lost.
func LossOf(share float64) LossClass { return LossClass(classOf(share, lossBounds)) }

// GoodputOf returns the class of a rate in bits a second.
func GoodputOf(rate float64) GoodputClass { return GoodputClass(classOf(rate, goodputBounds)) }

func classOf(x float64, bounds []float64) int {
	i, exact := slices.BinarySearch(bounds, x)
	if exact {
		i++
	}
	return i + 1
}

// String returns the range as text, or "" if it is not known.
func (c LossClass) String() string {
	switch {
	case c == 0 || c > MostLoss:
		return ""
	case c == 1:
		return "below 0.5 %"
	case c == MostLoss:
		return "5 % or more"
	}
	return fmt.Sprintf("%g to %g %%", 100*lossBounds[c-2], 100*lossBounds[c-1])
}

// String returns the range as text, or "" if it is not known.
func (c GoodputClass) String() string {
	switch {
	case c == 0 || c > MostGoodput:
		return ""
	case c == 1:
		return "below 1 Mbit/s"
	case c == MostGoodput:
		return "256 Mbit/s or more"
	}
	return fmt.Sprintf("%g to %g Mbit/s", goodputBounds[c-2]/1e6, goodputBounds[c-1]/1e6)
}

// known returns the claim without classes that do not exist here. They are invalid or from a later version.
func (c Claim) known() Claim {
	if c.Loss > MostLoss {
		c.Loss = 0
	}
	if c.Goodput > MostGoodput {
		c.Goodput = 0
	}
	return c
}

// Measured has the measurements through a waypoint towards one network of servers.
type Measured struct {
	Loss    float64 // share of packets lost
	Packets uint64  // number of packets that Loss was measured over
	Goodput float64 // of bulk traffic in bits of payload a second; 0: not measured
}

const (
	// leastPackets is the number of packets towards a network from which their loss counts.
	leastPackets = 1000
	// ShareFrom is the least number of networks behind a class that is shared with other members, because the rate
	// towards a single network could identify a server.
	ShareFrom = 3
	// CompareFrom is the least number of networks behind a class that is compared on this host.
	CompareFrom = 1
)

// Summary returns the claim about a waypoint that follows from measurements towards networks. Each class is that of
// the median. least is the number of networks that a class needs.
func Summary(waypoint string, networks []Measured, least int) Claim {
	var losses, goodputs []float64
	for _, n := range networks {
		if n.Packets >= leastPackets {
			losses = append(losses, n.Loss)
		}
		if n.Goodput > 0 {
			goodputs = append(goodputs, n.Goodput)
		}
	}
	c := Claim{Waypoint: waypoint}
	if len(losses) >= least {
		c.Loss = LossOf(median(losses))
	}
	if len(goodputs) >= least {
		c.Goodput = GoodputOf(median(goodputs))
	}
	return c
}

// median returns the median of x, which must not be empty. It sorts x.
func median(x []float64) float64 {
	slices.Sort(x)
	return x[(len(x)-1)/2]
}
