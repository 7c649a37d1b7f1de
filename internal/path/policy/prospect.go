package policy

import (
	"cmp"
	"math"
	"time"
)

const (
	// ExploreEvery makes one connection in 16 explore.
	ExploreEvery = 16
	// SameFactor is the factor below which two waits, or two goodputs, are about the same.
	SameFactor = 1.3
	// SameGoodput is added to two goodputs before they are compared, in bits a second.
	SameGoodput = 100e3
	// sameWait is added to two waits in the same way.
	sameWait = 5 * time.Millisecond
)

// compare compares two prospects by the budget, then by the goodput, then by the wait. Goodputs and waits are
// compared roughly. An unknown wait comes last.
func (p *Prospect) compare(q *Prospect) int {
	return cmp.Or(
		CompareFlags(p.Sparing, q.Sparing), cmp.Compare(q.goodputClass(), p.goodputClass()), cmp.Compare(p.waitClass(), q.waitClass()),
	)
}

// goodputClass returns the class of the goodput. Goodputs of one class are about the same.
func (p *Prospect) goodputClass() int { return p.class(p.Goodput + SameGoodput) }

// waitClass returns the class of the wait. Waits of one class are about the same.
func (p *Prospect) waitClass() int {
	if p.Wait == 0 {
		return math.MaxInt
	}
	return p.class(float64(p.Wait + sameWait))
}

func (p *Prospect) class(x float64) int { return int(math.Log(x)/math.Log(SameFactor) + p.Border) }
