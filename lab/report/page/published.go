package page

import (
	"fmt"
	"math"

	"github.com/detour-collective/dcol/lab/report"
)

// near is the largest difference from a published mean, as a part of it, at which a cell counts as repeated.
const near = 0.05

// repeated returns a section about the published cells that were measured under the published congestion control. It says
// how many are near, and lists the others, with the reason if the reference has one. It is empty if there is no such cell.
func (b *book) repeated() section {
	t := table{
		Title: "Those that differ by more", Words: 1, Head: []string{"where, and known cause", "ours", "published", "times"},
	}
	all := 0
	for _, n := range b.networks {
		for _, r := range n.rows {
			if r.Ratio == nil || r.Congestion != *r.PublishedCongestion {
				continue
			}
			all++
			if math.Abs(*r.Ratio-1) <= near {
				continue
			}
			t.Rows = append(t.Rows, []entry{
				{Text: r.Procedure, Below: []string{place(n, n.variant(r.Variant), r.Congestion), b.why(r)}},
				{Text: meanSD(*r.Mean, *r.SD)}, {Text: meanSD(*r.PublishedMean, *r.PublishedSD)}, {Text: fmt.Sprintf("%.3f", *r.Ratio)},
			})
		}
	}
	if all == 0 {
		return section{}
	}
	s := section{ID: "repeated", Title: "What was published, repeated"}
	s.Text = []string{say("repeated", map[string]any{"All": all, "Near": all - len(t.Rows), "Within": 100 * near})}
	if len(t.Rows) > 0 {
		s.Tables = []table{t}
	}
	return s
}

// why returns the known cause of a row's difference.
func (b *book) why(r Row) string {
	s := report.Setting{Network: r.Network, LossPct: *r.LossPct, DelayMS: *r.DelayMS}
	if why := b.reference.Why(s, r.Procedure, *r.Ratio > 1); why != "" {
		return why
	}
	return say("unexplained", nil)
}
