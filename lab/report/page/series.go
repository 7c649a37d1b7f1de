package page

import (
	"fmt"

	"github.com/detour-collective/dcol/lab/report"
)

// series draws goodput over time where something happens in the network while
// runs are made, all of a network to the same scale.
func series(n *network) (s section, ok bool, err error) {
	s = section{
		ID: "series-" + n.name, Title: "Over time: " + n.name,
		Text: []string{n.description},
		Legend: "Goodput by path, one on the other, of each procedure's run that is nearest to its median; dotted lines are " +
			"what happens to the network. " + n.underWhich(),
	}
	for _, part := range n.parts {
		if len(part.Marks) == 0 {
			continue
		}
		var typical []report.Run
		var titles []string
		top := 0.0
		for _, v := range part.Variants {
			for _, procedure := range n.procedures {
				run, ok := part.Under(n.congestions[0]).Typical(v.Name, procedure)
				if !ok || len(run.Series.Paths) == 0 || len(run.Series.Paths[0].Mbps) == 0 {
					continue // no run, or one shorter than a step
				}
				what := procedure
				if len(part.Variants) > 1 {
					what += ", " + title(v)
				}
				typical, titles = append(typical, run), append(titles, what)
				top = max(top, run.Series.Highest())
			}
		}
		for i, run := range typical {
			svg, err := report.GoodputChart{Series: run.Series, Marks: part.Marks, Paths: n.paths, Top: top}.SVG()
			if err != nil {
				return section{}, false, fmt.Errorf("%s: %w", titles[i], err)
			}
			said := fmt.Sprintf("%.2f Mbit/s in all, longest standstill %s", run.GoodputMbps, duration(run.LongestStallMS))
			s.Figures = append(s.Figures, figure{Title: titles[i], Caption: said, Note: said, SVG: svg})
		}
	}
	return s, len(s.Figures) > 0, nil
}
