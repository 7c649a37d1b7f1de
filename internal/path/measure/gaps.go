package measure

import "time"

// Gaps records the longest gaps between data in the last seconds.
type Gaps struct{ seconds window[time.Duration] }

// Take adds one gap, which ended now.
func (g *Gaps) Take(now time.Time, gap time.Duration) {
	c := g.seconds.at(now)
	*c = max(*c, gap)
}

// Longest returns the longest gap in the seconds up to before. ok is false if there was no data in them.
func (g *Gaps) Longest(before time.Time) (longest time.Duration, ok bool) {
	for gap := range g.seconds.until(before) {
		longest, ok = max(longest, *gap), true
	}
	return longest, ok
}
