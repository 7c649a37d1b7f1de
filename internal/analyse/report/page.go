package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/track"
	"github.com/detour-collective/dcol/internal/svgchart"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"span": span, "size": func(n uint64) string { return size(float64(n)) }, "bits": bitRate, "number": number[uint64],
	"time": func(t time.Time) string { return t.Format("2006-01-02 15:04:05 UTC") }, "colour": svgchart.Colour,
	"rtt": func(v *float64) string {
		if v == nil {
			return "–"
		}
		return span(*v)
	},
}).Parse(pageText))

// page holds the values of the page's template.
type page struct {
	Counts     analyse.Counts
	Lines      []Line
	Figures    []*figure
	Largest    []Listed
	All        bool // Largest has all connections
	Ports      []portRow
	Connection *track.Record
	Plots      []*figure
	End        string
	Fallback   string
	Tokens     string
	Facts      []string
	Events     []Event
	MoreEvents int
}

type portRow struct {
	Port                string
	Connections         string
	Share, TrafficShare string
	Bytes               string
}

// maxPorts bounds the table of ports; the others are summed up.
const maxPorts = 12

// WritePage writes one HTML file that needs nothing else. traced is the connection to plot, or nil.
func WritePage(w io.Writer, c analyse.Counts, t *Totals, traced *track.Record) error {
	p := page{Counts: c, Lines: t.Words(c), Ports: t.ports(), Connection: traced, Largest: slices.Clone(t.Largest), All: uint64(len(t.Largest)) == t.Connections}
	if p.All {
		slices.SortFunc(p.Largest, func(a, b Listed) int { return cmp.Compare(a.Number, b.Number) })
	}
	for _, f := range t.figures() {
		if f != nil {
			p.Figures = append(p.Figures, f)
		}
	}
	if traced != nil {
		p.Plots = plots(traced)
		p.End, p.Tokens, p.Facts = endWords[traced.End], tokenWords(traced.Tokens, ", "), facts(traced)
		p.Events, p.MoreEvents = events(traced)
		if traced.Fallback != nil {
			p.Fallback = causeWords[traced.Fallback.Cause]
		}
	}
	if err := pageTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func (t *Totals) figures() []*figure {
	figures := []*figure{
		distribution("Durations of connections", "duration", span, &t.Duration),
		distribution("Sizes of connections", "data, both directions", size, &t.Size),
		t.joinFigure(),
		distribution("Round trips of subflows", "mean round trip", span, &t.SubflowRTT),
		distribution("Change of a subflow's round trip over time", "highest minus lowest mean of its parts", span, &t.RTTChange),
		distribution("Difference of round trips in a connection", "slowest minus quickest, connections of 100 kB and more", span, &t.Spread),
		t.secondBestFigure(),
		distribution("Goodput of connections", "goodput", bitRate, &t.Goodput),
		distribution("Goodput of subflows", "while they carried data", bitRate, &t.SubflowGoodput),
		distribution("Most data in flight", "data", size, &t.MaxFlight),
		distribution("Idle time of connections", "pauses of a second and more, together", span, &t.Idle),
		distribution("Addresses: time until the echo", "delay of the echo of ADD_ADDR", span, &t.EchoDelay),
		distribution("Handovers: time without new data", "gap", span, &t.HandoverGaps),
		histogram("Retransmissions: when", "share of the connection's duration", t.RepeatAt[:]),
		histogram("Reinjections: when", "share of the connection's duration", t.ReinjectionAt[:]),
		distribution("Retransmitted data, of connections that retransmitted", "share of the connection's data", fraction, &t.RepeatedShare),
		distribution("Reinjected data, of connections that reinjected", "share of the connection's data", fraction, &t.ReinjectedShare),
	}
	for i, name := range []string{"below 50 kB", "of 50 kB to 5 MB", "above 5 MB"} {
		figures = append(figures, histogram("Share of the initial subflow, connections of two subflows "+name, "share of the data", t.Initial[i].Shares[:20+1]))
	}
	return figures
}

func fraction(v float64) string {
	if v >= 0.01 {
		return fmt.Sprintf("%.3g %%", 100*v)
	}
	return fmt.Sprintf("%.2g %%", 100*v)
}

// commonPorts returns the servers' ports, those with most connections first.
func (t *Totals) commonPorts() []uint16 {
	return slices.SortedFunc(maps.Keys(t.Ports), func(a, b uint16) int {
		return cmp.Or(cmp.Compare(t.Ports[b].Connections, t.Ports[a].Connections), cmp.Compare(a, b))
	})
}

func (t *Totals) ports() (rows []portRow) {
	row := func(name string, of Traffic) portRow {
		return portRow{name, number(of.Connections), percent(of.Connections, t.Connections), percent(of.Bytes, t.Bytes), size(float64(of.Bytes))}
	}
	var others Traffic
	for i, port := range t.commonPorts() {
		if of := t.Ports[port]; i < maxPorts {
			rows = append(rows, row(fmt.Sprint(port), of))
		} else {
			others.Connections += of.Connections
			others.Bytes += of.Bytes
		}
	}
	if others.Connections > 0 {
		rows = append(rows, row("others", others))
	}
	return rows
}
