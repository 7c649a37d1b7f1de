package page

import (
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/report"
)

// boxPlots draws for every variant the distributions of goodput side by side, as
// the figures of 2017 do, all of a network to the same scale. Networks that lie on
// axes have other plots, see sweep, and so have those whose programs set the pace,
// see latencies.
func boxPlots(n *network) (s section, ok bool, err error) {
	if len(n.axes()) > 0 || n.hasLatency() {
		return section{}, false, nil
	}
	s = section{
		ID: "boxes-" + n.name, Title: "Goodput: " + n.name,
		Text: []string{n.description},
		Legend: "A box is the middle half of the runs, with a line at the median, which is also written in bold " +
			"above the plot; whiskers reach to the furthest run within 1.5 times the box's height, circles are runs beyond. Filled boxes " +
			"are MPTCP, hollow ones plain TCP. " + n.underWhich(),
	}
	if n.mostRuns() == 1 {
		s.Legend = "There was one run of each, so there are no boxes: a line is that run's goodput, which is also written above the plot. " + n.underWhich()
	}
	if n.inPapers() {
		s.Legend += " A diamond is the mean published in 2017, which is written below our median."
	}
	for _, v := range n.shown() {
		f, ok, err := n.boxes(v, n.top(n.congestions[0]))
		if err != nil {
			return section{}, false, err
		}
		if ok {
			s.Figures = append(s.Figures, f)
		}
	}
	return s, len(s.Figures) > 0, nil
}

// underWhich says which congestion control a plot is of, and where the others are.
func (n *network) underWhich() string {
	first, others := n.congestions[0], n.congestions[1:]
	if len(others) == 0 {
		return "Congestion control: " + first + "."
	}
	where := CSVFile
	if slices.ContainsFunc(n.variants, func(v report.Variant) bool { return len(n.compared(v)) > 1 }) {
		where = "\u201cCongestion control compared\u201d below, and in " + CSVFile
	}
	return fmt.Sprintf("The plots are of the congestion control %s alone. With %s there were runs as well: their numbers are in %s.",
		first, strings.Join(others, " and "), where)
}

// mostRuns is how many runs there are where there are most.
func (n *network) mostRuns() int {
	most := 0
	for _, r := range n.rows {
		if r.Congestion == n.congestions[0] {
			most = max(most, r.N)
		}
	}
	return most
}

// top is the highest goodput of all of a network's runs.
func (n *network) top(congestion string) float64 {
	top := 0.0
	for _, r := range n.rows {
		if r.Congestion == congestion && r.N > 0 {
			top = max(top, *r.Max)
		}
	}
	return top
}

func (n *network) boxes(v report.Variant, top float64) (f figure, ok bool, err error) {
	chart := report.ColumnChart{Unit: "goodput, Mbit/s", Top: top, ReferenceName: "published mean"}
	var said []string
	for i, procedure := range n.procedures {
		at := cell{v.Name, procedure, n.congestions[0]}
		row, measured := n.row(at)
		if !measured && !n.planned(at) {
			continue
		}
		chart.Columns = append(chart.Columns, report.Column{
			Label: procedure, Values: n.values(at), Look: look(procedure, i), Reference: row.PublishedMean,
		})
		if measured {
			said = append(said, fmt.Sprintf("%s %.2f", procedure, *row.Median))
		}
	}
	if len(said) == 0 {
		return figure{}, false, nil
	}
	svg, err := chart.SVG()
	if err != nil {
		return figure{}, false, fmt.Errorf("%s: %w", v.Name, err)
	}
	return figure{Title: title(v), Caption: "medians in Mbit/s: " + strings.Join(said, ", "), SVG: svg}, true, nil
}

// planned reports whether a cell belongs to what was asked for.
func (n *network) planned(c cell) bool {
	return slices.ContainsFunc(n.rows, func(r Row) bool {
		return r.Variant == c.variant && r.Procedure == c.procedure && r.Congestion == c.congestion
	})
}

// look gives the kinds of detours a colour each, and plain TCP hollow boxes.
// Procedures that are alike but for the number of their paths have the same.
func look(procedure string, index int) report.Look {
	procedure = kin(procedure)
	l := report.Look{Hollow: strings.HasPrefix(procedure, "tcp")}
	switch strings.TrimPrefix(strings.TrimPrefix(procedure, "tcp"), "dcol") {
	case "-openvpn":
		l.Colour = 3
	case "-wireguard":
		l.Colour = 5
	case "-in-band":
		l.Colour = 2
	case "-detour":
		l.Colour = 1
	case "":
		if !l.Hollow {
			l.Colour = 1 // dcol; plain tcp has the direct path's
		}
	case "mptcp-1":
	default:
		l.Colour = index
	}
	return l
}
