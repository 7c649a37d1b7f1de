package page

import (
	"fmt"

	"github.com/detour-collective/dcol/lab/report"
)

// series draws goodput over time where something happens in the network while
// runs are made.
func series(n *network) (s section, ok bool, err error) {
	s = section{
		ID: "series-" + n.name, Title: "Over time: " + n.name,
		Text: []string{n.description, "Goodput by path, of each procedure's run that is nearest to its median. " + n.underWhich()},
	}
	for _, part := range n.parts {
		if len(part.Marks) == 0 {
			continue
		}
		for _, v := range part.Variants {
			for _, procedure := range n.procedures {
				f, ok, err := over(part, v, cell{v.Name, procedure, n.congestions[0]})
				if err != nil {
					return section{}, false, err
				}
				if ok {
					s.Figures = append(s.Figures, f)
				}
			}
		}
	}
	return s, len(s.Figures) > 0, nil
}

// over draws a cell's typical run; ok is false if there is none, or if it was
// shorter than a step of the series.
func over(part *report.Result, v report.Variant, c cell) (f figure, ok bool, err error) {
	run, ok := part.Under(c.congestion).Typical(c.variant, c.procedure)
	if !ok || len(run.Series.Paths) == 0 || len(run.Series.Paths[0].Mbps) == 0 {
		return figure{}, false, nil
	}
	svg, err := report.GoodputChart{Series: run.Series, Marks: part.Marks}.SVG()
	if err != nil {
		return figure{}, false, fmt.Errorf("%s, %s: %w", c.variant, c.procedure, err)
	}
	what := c.procedure
	if len(part.Variants) > 1 {
		what += ", " + title(v)
	}
	return figure{
		Title:   what,
		Caption: fmt.Sprintf("%.2f Mbit/s in all, longest time without progress %.0f ms", run.GoodputMbps, run.LongestStallMS),
		SVG:     svg,
	}, true, nil
}
