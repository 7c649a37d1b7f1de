package claim

import "time"

// Compare compares the claims with own, this host's recent measurements. line is the class of the highest goodput
// that this host recently got over any path, so its own line carries at least that.
func (b *Book) Compare(own []Claim, line GoodputClass, now time.Time) {
	for _, m := range b.members {
		for _, mine := range own {
			theirs, ok := m.of(mine.Waypoint)
			result := compare(mine, theirs, line, m.line())
			before, judged := m.verdicts[mine.Waypoint]
			switch {
			case !ok || result == unclear || now.Sub(m.at) > Lasts:
			case judged && !before.agreed && result == agrees: // a disagreement stays until it expires
			case !judged && len(m.verdicts) >= mostVerdicts:
			default:
				m.verdicts[mine.Waypoint] = verdict{result == agrees, now}
			}
		}
	}
}

// outcome is the result of comparing two claims.
type outcome uint8

const (
	unclear outcome = iota // there is nothing to compare, or a line may explain the difference
	agrees
	disagrees
)

// compare compares a claim of this host with another member's about the same waypoint. They agree if all classes that
// both have differ by at most one. A member's line limits what it gets through any waypoint. So this host does not
// refute a higher goodput if it got no more over any path. It does not refute a lower one if the other member claims
// no more of any waypoint.
func compare(mine, theirs Claim, line, theirLine GoodputClass) outcome {
	result := unclear
	if mine.Loss != 0 && theirs.Loss != 0 {
		if differ(mine.Loss, theirs.Loss) {
			return disagrees
		}
		result = agrees
	}
	if mine.Goodput == 0 || theirs.Goodput == 0 {
		return result
	}
	if !differ(mine.Goodput, theirs.Goodput) {
		return agrees
	}
	// Compare what each would have got on the other's line.
	if differ(min(mine.Goodput, max(theirs.Goodput, theirLine)), min(theirs.Goodput, max(mine.Goodput, line))) {
		return disagrees
	}
	return unclear
}

// differ reports whether two classes are more than one apart.
func differ[T LossClass | GoodputClass](a, b T) bool { return max(a, b)-min(a, b) > 1 }

// line returns the highest goodput that the member claims. Its line carries at least that.
func (m *member) line() (most GoodputClass) {
	for _, c := range m.claims {
		most = max(most, c.Goodput)
	}
	return most
}
