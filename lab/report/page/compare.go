package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/chart"
	"github.com/detour-collective/dcol/lab/stats"
)

const (
	// alike is the share of plain TCP's goodput below which a detour counts as a loss.
	alike = 0.98
	// late is the same for latencies: the ratio of plain TCP's 99th percentile to the detour's.
	late = 0.8
	// short is the latency of answers so short that their end matters, in ms.
	short = 300
	// many is the multiple of TCP's retransmissions that counts as a cause, if the difference is at least some.
	many, some = 2, 10
	// credit is the ratio of TCP's goodput to its steady goodput above which the start inflates it.
	credit = 1.005
)

// comparison compares a procedure with a detour with plain TCP on the direct path, in the
// same variant of a network with the same congestion control. Everything on the page about
// how much better or worse dcol is comes from comparisons.
type comparison struct {
	network *network
	row, of Row
}

// comparisons lists all comparisons, in the order of the rows.
func (b *book) comparisons() []comparison {
	var found []comparison
	for _, n := range b.networks {
		for _, r := range n.rows {
			if !usesDetour(r.Procedure) {
				continue
			}
			if c, ok := n.compare(r); ok {
				found = append(found, c)
			}
		}
	}
	return found
}

// compare returns the row beside plain TCP's; ok is false if one of them has no runs.
func (n *network) compare(r Row) (c comparison, ok bool) {
	tcp, ok := n.row(cell{r.Variant, "tcp", r.Congestion})
	c = comparison{n, r, tcp}
	if !ok || r.Median == nil || *tcp.Median == 0 {
		return c, false
	}
	if n.paced() && (p99(r) == 0 || p99(tcp) == 0) {
		return c, false
	}
	return c, true
}

// times returns how many times as good as plain TCP the procedure is: the ratio of its goodput to plain TCP's or, where a
// program sends at its own pace, of plain TCP's 99th percentile of latency to its own.
func (c comparison) times() float64 {
	if c.network.paced() {
		return p99(c.of) / p99(c.row)
	}
	return *c.row.Median / *c.of.Median
}

// steady returns the ratio from the fourth measured second on, or nil if there is none.
func (c comparison) steady() *float64 {
	if c.network.paced() || c.row.Steady == nil || c.of.Steady == nil {
		return nil
	}
	ratio := *c.row.Steady / *c.of.Steady
	return &ratio
}

// worse reports whether the detour is a loss.
func (c comparison) worse() bool {
	if c.network.paced() {
		return c.times() <= late
	}
	return c.times() < alike
}

func (c comparison) where() string {
	return place(c.network, c.network.variant(c.row.Variant), c.row.Congestion)
}

// Times and Where are for the page's words.
func (c comparison) Times() string { return fmt.Sprintf("%.2f", c.times()) }

// Where names the place and the procedure.
func (c comparison) Where() string { return c.where() + ", " + c.row.Procedure }

// summary returns the first section: dcol's gains and losses, the targets, and the expectations
// that are not met. Those that are met come later, see held.
func (b *book) summary() (section, error) {
	s := section{ID: "summary", Title: "What it shows"}
	all := b.comparisons()
	if len(all) > 0 {
		byTimes := func(x, y comparison) int { return cmp.Compare(x.times(), y.times()) }
		better, worse := 0, 0
		for _, c := range all {
			switch {
			case c.worse():
				worse++
			case c.times() > 1/alike:
				better++
			}
		}
		s.Text = append(s.Text, say("summary", map[string]any{
			"All": len(all), "Better": better, "Worse": worse, "Alike": len(all) - better - worse,
			"Best": slices.MaxFunc(all, byTimes), "Worst": slices.MinFunc(all, byTimes),
		}))
		f, err := overview(all)
		if err != nil {
			return s, err
		}
		s.Figures = []figure{f}
	}
	told := []string{b.progress()}
	targets, expectations := b.targets(), b.expectations()
	if len(targets) > 0 {
		told = append(told, targetsLine(targets))
		s.Tables = append(s.Tables, targetTable(targets))
	}
	if len(expectations) > 0 {
		told = append(told, expectationsLine(expectations))
		if t := b.expectationTable(expectations, false); len(t.Rows) > 0 {
			s.Tables = append(s.Tables, t)
		}
	}
	s.Text = append(s.Text, strings.Join(told, " "))
	return s, nil
}

// overview draws a box of the comparisons of each network and procedure.
func overview(all []comparison) (figure, error) {
	c := chart.Boxes{Unit: "times as good as plain TCP on the direct path", Log: true, Levels: []chart.Level{{Value: 1, Label: ""}}}
	values := map[string][]float64{}
	var labels []string
	looks := map[string]chart.Look{}
	for _, x := range all {
		label := x.network.name + " " + x.row.Procedure
		labels = appendNew(labels, label)
		values[label] = append(values[label], x.times())
		looks[label] = lookOf(x.row.Procedure, 0)
	}
	for _, label := range labels {
		c.Boxes = append(c.Boxes, chart.Box{Label: label, Look: looks[label], Summary: stats.Summarize(values[label])})
	}
	svg, err := c.SVG()
	return figure{Title: "dcol beside plain TCP", Caption: "the numbers are in the tables below", Note: say("overview", nil), SVG: svg}, err
}

// progress returns a sentence about how much has been measured.
func (b *book) progress() string {
	missing, all := 0, 0
	for _, n := range b.networks {
		for _, r := range n.rows {
			all++
			if r.N == 0 {
				missing++
			}
		}
	}
	return say("progress", map[string]int{
		"Runs": b.suite.Fidelity.Runs, "Discarded": b.suite.Fidelity.Discarded, "Failed": b.suite.Fidelity.Failed, "All": all, "Missing": missing,
	})
}

// behind lists all places in which a detour is a loss, with the cause if the runs show it.
func (b *book) behind() section {
	s := section{ID: "behind", Title: "Where dcol is behind plain TCP"}
	all := b.comparisons()
	found := slices.DeleteFunc(slices.Clone(all), func(c comparison) bool { return !c.worse() })
	if len(found) == 0 {
		return section{}
	}
	slices.SortStableFunc(found, func(x, y comparison) int { return cmp.Compare(x.times(), y.times()) })
	s.Text = []string{say("behind", map[string]int{"All": len(all), "Found": len(found)})}
	t := table{Title: "All of them, the worst first", Words: 1, Note: say("behind-columns", nil), Head: []string{"where, and known cause", "dcol", "TCP", "times", "steady", "sent again", "TCP's"}}
	for _, c := range found {
		ours, theirs := digits(*c.row.Median), digits(*c.of.Median)
		if c.network.paced() {
			ours, theirs = duration(p99(c.row)), duration(p99(c.of))
		}
		t.Rows = append(t.Rows, []entry{
			{Text: c.row.Procedure, Below: []string{c.where(), c.cause()}}, {Text: ours}, {Text: theirs},
			{Text: fmt.Sprintf("%.3f", c.times())}, value(c.steady()),
			{Text: fmt.Sprintf("%.0f", c.row.Retransmitted)}, {Text: fmt.Sprintf("%.0f", c.of.Retransmitted)},
		})
	}
	s.Tables = []table{t}
	return s
}

// cause returns a sentence about the likely cause of a loss, from the numbers of the same place.
func (c comparison) cause() string {
	steady := 0.0
	if s := c.steady(); s != nil {
		steady = *s
	}
	credited := c.of.Steady != nil && *c.of.Median > credit**c.of.Steady
	about := map[string]any{"Headers": headerPct, "Credited": credited, "Median": *c.of.Median}
	if credited {
		about["Steady"] = *c.of.Steady
	}
	mapped, plain := c.network.median(cell{c.row.Variant, "dcol", c.row.Congestion})
	tunnel, inTunnel := c.tunnelPct()
	about["Tunnel"] = tunnel
	switch {
	case c.network.paced():
		return say("cause-late", about)
	case c.row.Latency != nil && c.row.Latency.P50MS < short:
		return say("cause-short", about)
	case inTunnel:
		return say("cause-tunnel", about)
	case plain && mapped > *c.row.Median && isTunnel(c.row.Procedure):
		return say("cause-tunnel-packets", about)
	case credited && *c.row.Median >= alike**c.of.Steady:
		return say("cause-credited", about)
	case c.row.Retransmitted >= max(many*c.of.Retransmitted, c.of.Retransmitted+some):
		return say("cause-again", about)
	case steady > 2-alike: // no connection carries that over a shared link
		return say("cause-held", about)
	case steady >= alike:
		return say("cause-start", about)
	}
	return say("cause-headers", about)
}

func isTunnel(procedure string) bool {
	return strings.HasSuffix(procedure, "openvpn") || strings.HasSuffix(procedure, "wireguard")
}

// tunnelPct returns the share of the tunnel's headers in per cent: the share that plain TCP loses to them, times the
// detour's share of the bytes.
func (c comparison) tunnelPct() (pct float64, ok bool) {
	tunnel := strings.TrimPrefix(c.row.Procedure, "dcol")
	if !isTunnel(c.row.Procedure) {
		return 0, false
	}
	kept, ok := c.network.median(cell{c.row.Variant, "tcp" + tunnel, c.row.Congestion})
	whole, okWhole := c.network.median(cell{c.row.Variant, "tcp-detour", c.row.Congestion})
	part := detourPct(c.row.BytesPerPath)
	if !ok || !okWhole || whole == 0 || math.IsNaN(part) {
		return 0, false
	}
	return (1 - kept/whole) * part, true
}

// detourPct returns the share of bytes that did not take the direct path, or NaN if there are none.
func detourPct(perPath map[string]float64) float64 {
	all := 0.0
	for _, bytes := range perPath {
		all += bytes
	}
	return 100 * (all - perPath["direct"]) / all
}
