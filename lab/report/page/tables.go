package page

import (
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/report"
)

// hasLatency reports whether any of a network's runs measured latencies.
func (n *network) hasLatency() bool {
	return slices.ContainsFunc(n.rows, func(r Row) bool { return r.Latency != nil })
}

// paced reports whether a program sends at its own pace, so that latencies and not goodput
// measure the paths. Downloads of files are not paced.
func (n *network) paced() bool { return n.hasLatency() && len(n.axes()) == 0 }

// tables returns a network's numbers. Plots have those of a sweep over two axes.
func (n *network) tables() []table {
	var tables []table
	add := func(name string, of func(Row) entry) {
		t := n.matrix(of)
		if len(t.Rows) > 0 {
			t.Title, t.Note = say(name, n.name), say(name+"-cells", map[string]bool{"Published": n.published(), "BesideTCP": n.besideTCP()})
			tables = append(tables, t)
		}
	}
	switch {
	case len(n.axes()) == 2:
	case n.paced():
		add("table-latency", n.latencyCell)
	case n.hasLatency():
		add("table-time", n.timeCell)
	default:
		add("table-goodput", n.goodputCell)
		if n.published() {
			add("table-split", n.splitCell)
		}
	}
	return tables
}

// matrix returns a table with a line for each variant and congestion control, and a column for
// each procedure. of makes the cells.
func (n *network) matrix(of func(Row) entry) table {
	t := table{Words: 1, Head: []string{""}}
	if len(n.congestions) > 1 {
		t.Words, t.Head = 2, []string{"", "control"}
	}
	filled := map[string]bool{}
	cells := map[cell]entry{}
	for _, r := range n.rows {
		if r.N > 0 {
			if e := of(r); e.Text != "" {
				filled[r.Procedure] = true
				cells[cell{r.Variant, r.Procedure, r.Congestion}] = e
			}
		}
	}
	procedures := slices.DeleteFunc(slices.Clone(n.procedures), func(p string) bool { return !filled[p] })
	t.Head = append(t.Head, procedures...)
	for _, v := range n.variants {
		for _, congestion := range n.congestions {
			line := entries(title(v), congestion)[:t.Words]
			measured := false
			for _, procedure := range procedures {
				e, ok := cells[cell{v.Name, procedure, congestion}]
				if !ok {
					e = none()
				}
				measured = measured || ok
				line = append(line, e)
			}
			if measured {
				t.Rows = append(t.Rows, line)
			}
		}
	}
	return t.grouped()
}

// goodputCell returns the mean with the standard deviation, and below it what was published,
// or else the ratio to plain TCP.
func (n *network) goodputCell(r Row) entry {
	e := entry{Text: meanSD(*r.Mean, *r.SD)}
	if r.N == 1 { // of one run there is no deviation
		e.Text = fmt.Sprintf("%.2f", *r.Mean)
	}
	switch {
	case r.PublishedMean != nil && n.comparable(r):
		e.Below = []string{meanSD(*r.PublishedMean, *r.PublishedSD), fmt.Sprintf("× %.3f", *r.Ratio)}
	case !n.published():
		e.Below = n.timesTCP(r, median)
	}
	return e
}

func meanSD(mean, sd float64) string { return fmt.Sprintf("%.2f (%.2f)", mean, sd) }

// comparable reports whether the page shows published numbers beside a row. It does if the row has the network's first
// congestion control or the published one.
func (n *network) comparable(r Row) bool {
	return r.Congestion == n.congestions[0] || r.PublishedCongestion != nil && r.Congestion == *r.PublishedCongestion
}

// timesTCP returns the ratio of a value to plain TCP's in the same place.
func (n *network) timesTCP(r Row, of func(Row) float64) []string {
	tcp, ok := n.row(cell{r.Variant, "tcp", r.Congestion})
	if !ok || r.Procedure == "tcp" || of(tcp) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("× %.2f", of(r)/of(tcp))}
}

// besideTCP reports whether there are runs of plain TCP with which others can be compared.
func (n *network) besideTCP() bool {
	return slices.ContainsFunc(n.rows, func(r Row) bool {
		_, ok := n.row(cell{r.Variant, "tcp", r.Congestion})
		return ok && r.N > 0 && r.Procedure != "tcp"
	})
}

func median(r Row) float64 { return *r.Median }

// p50 and p99 are of latencies, in ms; 0 if a row has none.
func p50(r Row) float64 {
	if r.Latency == nil {
		return 0
	}
	return r.Latency.P50MS
}

func p99(r Row) float64 {
	if r.Latency == nil {
		return 0
	}
	return r.Latency.P99MS
}

// latencyCell returns the 99th percentile, and below it the others.
func (n *network) latencyCell(r Row) entry {
	l := r.Latency
	if l == nil {
		return entry{}
	}
	e := entry{Text: duration(l.P99MS)}
	e.Below = append(n.timesTCP(r, p99), "50 %: "+duration(l.P50MS), "90 %: "+duration(l.P90MS), "95 %: "+duration(l.P95MS), "longest: "+duration(l.MaxMS))
	if c, ok := n.compare(r); ok && c.worse() {
		e.Mark = bad
	} else if ok && c.times() >= 1/late {
		e.Mark = good
	}
	return e
}

// timeCell returns the median time that a file takes.
func (n *network) timeCell(r Row) entry {
	if r.Latency == nil {
		return entry{}
	}
	return entry{Text: duration(r.Latency.P50MS), Below: n.timesTCP(r, p50)}
}

// splitCell returns the detour's share of the bytes, with the published one.
func (n *network) splitCell(r Row) entry {
	if r.PublishedBytesPerPath == nil || len(r.BytesPerPath) == 0 {
		return entry{}
	}
	detour := 0.0
	for path, bytes := range r.PublishedBytesPerPath {
		if path != "direct" {
			detour += bytes
		}
	}
	e := entry{Text: fmt.Sprintf("%.1f %%", detourPct(r.BytesPerPath))}
	if r.Congestion == n.congestions[0] { // the published trial is of one
		e.Below = []string{fmt.Sprintf("%.1f %%", detourPct(r.PublishedBytesPerPath)), fmt.Sprintf("%.2f MB", detour/1e6)}
	}
	return e
}

// procedure describes a procedure.
type procedure struct {
	Name, Description string
	Networks          string // in which the description holds, if it differs in others
}

// procedures lists the procedures with their descriptions.
func (b *book) procedures() []procedure {
	type said struct{ name, words string }
	in := map[said][]string{}
	var names []string
	for _, n := range b.networks {
		for _, part := range n.parts {
			for _, p := range part.Procedures {
				if p.Description != "" {
					names = appendNew(names, p.Name)
					in[said{p.Name, p.Description}] = appendNew(in[said{p.Name, p.Description}], n.name)
				}
			}
		}
	}
	sortProcedures(names)
	var all []procedure
	for _, name := range names {
		var found []procedure
		for s, networks := range in {
			if s.name == name {
				found = append(found, procedure{name, s.words, strings.Join(networks, ", ")})
			}
		}
		if len(found) == 1 {
			found[0].Networks = ""
		}
		slices.SortFunc(found, func(a, b procedure) int { return strings.Compare(a.Networks, b.Networks) })
		all = append(all, found...)
	}
	return all
}

// linkTable returns the links as declared, with one line for a link that is the same in both
// directions.
func (n *network) linkTable() table {
	t := table{Title: "The links of " + n.name, Words: 2, Head: []string{"link", "between", "Mbit/s", "delay, ms", "jitter, ms", "loss, %", "queue, KB"}}
	var last report.Link
	for _, link := range n.parts[0].Links {
		back := last
		back.From, back.To = last.To, last.From
		arrow := " → "
		if link == back {
			t.Rows = t.Rows[:len(t.Rows)-1]
			link, arrow = last, " ↔ "
		}
		last = link
		rate := number(&link.RateMbps)
		if link.RateMbps == 0 {
			rate = "unlimited"
		}
		queue := float64(link.QueueBytes) / 1e3
		t.Rows = append(t.Rows, entries(link.Link, link.From+arrow+link.To, rate,
			number(&link.DelayMS), number(&link.JitterMS), number(&link.LossPct), number(&queue)))
	}
	return t
}
