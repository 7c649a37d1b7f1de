package plan

import "slices"

// Shrink returns the smallest plan it finds that still fails. It leaves out faults, first
// half of them, then fewer at a time. fails carries a plan out. Its first error, as when
// time is up, ends the search.
func Shrink(p Plan, fails func(Plan) (bool, error)) Plan {
	for part := len(p.Faults) / 2; part > 0; {
		smaller, found, err := without(p, part, fails)
		switch {
		case err != nil:
			return p
		case found:
			p = smaller
			part = min(part, len(p.Faults)/2)
		default:
			part /= 2
		}
	}
	return p
}

// without tries the plan without its first part faults, without the next part faults, and so on.
func without(p Plan, part int, fails func(Plan) (bool, error)) (Plan, bool, error) {
	for from := 0; from < len(p.Faults); from += part {
		to := min(from+part, len(p.Faults))
		smaller := p
		smaller.Faults = slices.Delete(slices.Clone(p.Faults), from, to)
		if len(smaller.Faults) == 0 {
			continue
		}
		switch failed, err := fails(smaller); {
		case err != nil:
			return p, false, err
		case failed:
			return smaller, true, nil
		}
	}
	return p, false, nil
}
