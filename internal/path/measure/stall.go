package measure

import "time"

// Gaps records the longest gaps between data in the last seconds.
type Gaps struct{ seconds window[time.Duration] }

// Take adds one gap, which ended now.
func (g *Gaps) Take(now time.Time, gap time.Duration) {
	c := g.seconds.at(now)
	*c = max(*c, gap)
}

// Longest returns the longest gap in the seconds before the silence began. ok is false if there was
// no data.
func (g *Gaps) Longest(before time.Time) (longest time.Duration, ok bool) {
	for gap := range g.seconds.until(before) {
		longest, ok = max(longest, *gap), true
	}
	return longest, ok
}

// Holds counts the samples in which a subflow held up its connection: the connection's data stood
// still while another subflow brought data from beyond the gap.
type Holds struct{ seconds window[holds] }

type holds struct{ samples, held int }

// Take adds one sample.
func (h *Holds) Take(now time.Time, held bool) {
	c := h.seconds.at(now)
	c.samples++
	if held {
		c.held++
	}
}

// Share returns the share of recent samples in which the subflow held up its connection. ok is false
// if there were too few.
func (h *Holds) Share(now time.Time) (share float64, ok bool) {
	var sum holds
	for c := range h.seconds.until(now) {
		sum.samples += c.samples
		sum.held += c.held
	}
	if sum.samples < 20 {
		return 0, false
	}
	return float64(sum.held) / float64(sum.samples), true
}
