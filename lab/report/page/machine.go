package page

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/report"
)

// fidelity says how true the runs were to what they were meant to be.
func (b *book) fidelity() ([]section, error) {
	f := b.suite.Fidelity
	s := section{
		ID: "fidelity", Title: "How true the runs are",
		Text: []string{
			"The lab checks every run while it is made: whether each link delivered its packets in time, whether the emulation lost any " +
				"itself, and how late a reference flow of ordinary programs was beside it. A run in which the 99th percentile of a link's packets is more than 3 ms late, or that of the reference " +
				"flow's echoes more than 20 ms (3 ms where latencies are measured), is repeated; none is kept silently.",
			counted(f.Runs, "run counts", "runs count") + fmt.Sprintf(", with %.1f networks at a time on average. ", f.Networks) +
				counted(f.Discarded, "was discarded", "were discarded") + discards(f) + ".",
		},
	}
	if f.Runs > 0 {
		s.Tables = []table{{
			Title: "Over the runs that count", Words: 1, Head: []string{"", "median run", "worst run"},
			Rows: [][]entry{
				{{Text: "processors busy"}, {Text: fmt.Sprintf("%.0f %%", 100*f.CPUShare.Median)}, {Text: fmt.Sprintf("%.0f %%", 100*f.CPUShare.Max)}},
				late("packets late on the worst link, 99th percentile", f.LinkP99MS),
				late("reference flow late, 99th percentile", f.ReferenceP99MS),
			},
		}}
	}
	return []section{s}, nil
}

func late(what string, ms report.Spread) []entry {
	return []entry{{Text: what}, {Text: fmt.Sprintf("%.2f ms", ms.Median)}, {Text: fmt.Sprintf("%.2f ms", ms.Max)}}
}

// discards lists why runs were discarded.
func discards(f report.Fidelity) string {
	meanings := map[report.Cause]string{
		report.CauseLateLink:      "a link delivered too much too late",
		report.CauseEmulation:     "a link's emulation lost packets itself",
		report.CauseLateReference: "programs waited for a processor",
		report.CauseFailure:       "a program failed, or the run took too long",
	}
	var parts []string
	for _, cause := range slices.Sorted(maps.Keys(f.Causes)) {
		meaning, ok := meanings[cause]
		if !ok {
			meaning = string(cause)
		}
		parts = append(parts, fmt.Sprintf("%d because %s", f.Causes[cause], meaning))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// environment says what was run on what.
func (b *book) environment() ([]section, error) {
	e := b.suite.Environment
	took := time.Duration(b.suite.Seconds * float64(time.Second)).Round(time.Second)
	t := table{Title: "The machine and its programs", Words: 2, Head: []string{"", ""}}
	for _, line := range [][2]string{
		{"kernel", "Linux " + e.Kernel + ", client, server, waypoints and routers alike"},
		{"processors", fmt.Sprint(e.CPUs)},
		{"links", "by " + e.Backend},
		{"congestion control", e.Congestion},
		{"seed", fmt.Sprintf("%d, of the links' loss and jitter", e.Seed)},
		{"begun", b.suite.Started.UTC().Format("2006-01-02 15:04 UTC")},
		{"took", took.String()},
	} {
		t.Rows = append(t.Rows, words(line[:]...))
	}
	for _, name := range slices.Sorted(maps.Keys(e.Programs)) {
		t.Rows = append(t.Rows, words(name, e.Programs[name]))
	}
	parts := table{Title: "What was run", Words: 4, Head: []string{"network", "variants", "procedures", "congestion controls", "combinations", "runs"}}
	for _, n := range b.networks {
		runs := 0
		for _, r := range n.rows {
			runs += r.N
		}
		parts.Rows = append(parts.Rows, []entry{
			{Text: n.name, Below: []string{n.description}},
			{Text: listed(n.variants)},
			{Text: strings.Join(n.procedures, ", ")},
			{Text: strings.Join(n.congestions, ", ")},
			{Text: fmt.Sprint(len(n.rows))},
			{Text: fmt.Sprint(runs)},
		})
	}
	tables := []table{parts, t}
	for _, n := range b.networks {
		if links := n.linkTable(); len(links.Rows) > 0 {
			tables = append(tables, links)
		}
	}
	text := "The numbers of this page, one line for each network, procedure and congestion control, are in " + JSONFile +
		" and " + CSVFile + " beside it."
	if b.inPapers() {
		text += " The published ones are from S. Brennan, Exploring Alternative Routes Using Multipath TCP, " +
			"MSc thesis, Case Western Reserve University, 2017, Tables 1 and 2."
	}
	return []section{{ID: "environment", Title: "What was run on what", Text: []string{text}, Tables: tables}}, nil
}

// listed names variants, or counts them if they are many, as a sweep's are.
func listed(variants []report.Variant) string {
	if len(variants) > 10 {
		return fmt.Sprint(len(variants))
	}
	names := make([]string, len(variants))
	for i, v := range variants {
		names[i] = v.Name
	}
	return strings.Join(names, ", ")
}

// linkTable is the network as declared, with one line for a link that is the same
// in both directions.
func (n *network) linkTable() table {
	t := table{
		Title: "The links of " + n.name, Words: 2, Note: "As declared; a variant changes what its name says. Queues are drop-tail.",
		Head: []string{"link", "between", "Mbit/s", "delay, ms", "jitter, ms", "loss, %", "queue, KB"},
	}
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
		t.Rows = append(t.Rows, words(link.Link, link.From+arrow+link.To, rate,
			number(&link.DelayMS), number(&link.JitterMS), number(&link.LossPct), number(&queue)))
	}
	return t
}
