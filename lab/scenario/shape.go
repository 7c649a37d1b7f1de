package scenario

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/detour-collective/dcol/internal/units"
)

// Params are the properties of a link in one or both directions. A property that is not set is taken from the Params
// that these override.
type Params struct {
	Rate   *units.Rate     `toml:"rate"`
	Delay  *units.Duration `toml:"delay"`
	Jitter *units.Duration `toml:"jitter"`
	Loss   *units.Share    `toml:"loss"`
	Queue  *Queue          `toml:"queue"`
	Impairments
}

// Impairments describes what a link does to packets besides delay and independent loss. lab/emulink has the
// models.
type Impairments struct {
	Burst       *units.Share    `toml:"burst"`        // of packets that begin a burst of losses
	BurstLength *int            `toml:"burst_length"` // packets, on average
	BurstLoss   *units.Share    `toml:"burst_loss"`   // within a burst
	Reorder     *units.Share    `toml:"reorder"`
	ReorderBy   *units.Duration `toml:"reorder_by"`
	Duplicate   *units.Share    `toml:"duplicate"`
	Corrupt     *units.Share    `toml:"corrupt"`
	Tamper      *units.Share    `toml:"tamper"`
}

// Over returns base with the properties that p sets.
func (p Params) Over(base Params) Params {
	return Params{
		Rate:        cmp.Or(p.Rate, base.Rate),
		Delay:       cmp.Or(p.Delay, base.Delay),
		Jitter:      cmp.Or(p.Jitter, base.Jitter),
		Loss:        cmp.Or(p.Loss, base.Loss),
		Queue:       cmp.Or(p.Queue, base.Queue),
		Impairments: p.Impairments.over(base.Impairments),
	}
}

func (i Impairments) over(base Impairments) Impairments {
	return Impairments{
		Burst:       cmp.Or(i.Burst, base.Burst),
		BurstLength: cmp.Or(i.BurstLength, base.BurstLength),
		BurstLoss:   cmp.Or(i.BurstLoss, base.BurstLoss),
		Reorder:     cmp.Or(i.Reorder, base.Reorder),
		ReorderBy:   cmp.Or(i.ReorderBy, base.ReorderBy),
		Duplicate:   cmp.Or(i.Duplicate, base.Duplicate),
		Corrupt:     cmp.Or(i.Corrupt, base.Corrupt),
		Tamper:      cmp.Or(i.Tamper, base.Tamper),
	}
}

// Impaired reports whether any impairment is set.
func (i Impairments) Impaired() bool {
	for _, share := range []*units.Share{i.Burst, i.Reorder, i.Duplicate, i.Corrupt, i.Tamper} {
		if share != nil && *share > 0 {
			return true
		}
	}
	return false
}

// String lists the impairments that are set, like "burst 1% burst_length 8".
func (i Impairments) String() string {
	var said []string
	say := func(key string, value fmt.Stringer, set bool) {
		if set {
			said = append(said, key+" "+value.String())
		}
	}
	say("burst", i.Burst, i.Burst != nil)
	if i.BurstLength != nil {
		said = append(said, fmt.Sprintf("burst_length %d", *i.BurstLength))
	}
	say("burst_loss", i.BurstLoss, i.BurstLoss != nil)
	say("reorder", i.Reorder, i.Reorder != nil)
	say("reorder_by", i.ReorderBy, i.ReorderBy != nil)
	say("duplicate", i.Duplicate, i.Duplicate != nil)
	say("corrupt", i.Corrupt, i.Corrupt != nil)
	say("tamper", i.Tamper, i.Tamper != nil)
	return strings.Join(said, " ")
}

// IsZero reports whether nothing is set.
func (p Params) IsZero() bool { return p == Params{} }

// Shape describes a link: the properties of both directions, and properties that only the direction from A to B or from
// B to A has.
type Shape struct {
	Params
	AtoB Params `toml:"a_to_b"`
	BtoA Params `toml:"b_to_a"`
}

// Over returns base with the properties that s sets. A value of s for both directions overrides base's value for one,
// because "the link loses 1 %" means both directions.
func (s Shape) Over(base Shape) Shape {
	return Shape{
		Params: s.Params.Over(base.Params),
		AtoB:   s.AtoB.Over(s.Params.Over(base.AtoB)),
		BtoA:   s.BtoA.Over(s.Params.Over(base.BtoA)),
	}
}

// Directions resolves the shape into its two directions.
func (s Shape) Directions() (ab, ba Params) {
	return s.AtoB.Over(s.Params), s.BtoA.Over(s.Params)
}

// impaired reports whether any impairment is set for either direction.
func (s Shape) impaired() bool {
	ab, ba := s.Directions()
	return ab.Impaired() || ba.Impaired()
}

// Shapes returns the shapes of all links under a variant, in the links' order.
func (s *Scenario) Shapes(v Variant) []Shape {
	shapes := make([]Shape, len(s.Links))
	for i, l := range s.Links {
		shapes[i] = l.Shape
		for _, c := range v.Changes {
			if c.Link == l.Name {
				shapes[i] = c.Shape.Over(shapes[i])
			}
		}
	}
	return shapes
}

// Impaired reports whether any link has impairments at any time in any variant.
func (s *Scenario) Impaired() bool {
	for _, l := range s.Links {
		if l.impaired() {
			return true
		}
	}
	for _, v := range s.Variants {
		for _, c := range v.Changes {
			if c.impaired() {
				return true
			}
		}
	}
	for _, e := range s.Events {
		if e.impaired() {
			return true
		}
	}
	return false
}
