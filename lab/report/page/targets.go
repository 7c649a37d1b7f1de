package page

import (
	"fmt"
	"math"
	"slices"

	"github.com/detour-collective/dcol/lab/report"
)

// Target is a target of a suite. Values are in per cent, computed from medians. Published values are computed from means,
// because means were published. Measured is null without valid runs.
type Target struct {
	What      string   `json:"what"`
	Procedure string   `json:"procedure"`
	Where     string   `json:"where"`
	AtLeast   bool     `json:"at_least"` // or, if not, at most
	LimitPct  float64  `json:"limit_pct"`
	SpreadPct float64  `json:"spread_pct"` // that the limit leaves to chance
	Measured  *float64 `json:"measured_pct"`
	Steady    *float64 `json:"steady_pct"` // from the fourth second that counts on
	Published *float64 `json:"published_pct"`
	Met       bool     `json:"met"`
	Remark    string   `json:"remark"`
}

const (
	// headerPct is the part of a full segment's 1448 bytes that MPTCP's data sequence
	// option takes, in per cent: 24 bytes, as mainline Linux sends it with uploads. So
	// 98.34 % is the most that MPTCP can carry of what TCP does.
	headerPct = 100 * 24.0 / 1448
	// leastSpread is the least difference between evaluations of three repetitions.
	leastSpread = 0.5
)

// targets returns the goals of the reference about networks of the suite, then the worst result of
// each procedure with a detour.
func (b *book) targets() []Target {
	targets := []Target{}
	for _, g := range b.reference.Goals() {
		if n := b.network(g.Network); n != nil {
			targets = append(targets, b.target(n, g))
		}
	}
	return append(targets, b.worst()...)
}

// target decides a goal by the first congestion control for which everything was measured.
func (b *book) target(n *network, g report.Goal) Target {
	t := Target{What: g.What, Procedure: g.Procedure, Where: n.name, AtLeast: !g.Cost, LimitPct: g.LimitPct}
	if v, ok := n.at(g.Setting); ok {
		t.Where += ", " + title(v)
		for _, congestion := range n.congestions {
			if t.measure(n, v, congestion, g.Of) {
				t.Where = place(n, v, congestion)
				break
			}
		}
	}
	if p, ok := b.publishedPct(g.Setting, g.Procedure, g.Of); ok {
		t.Published = t.counted(p)
	}
	t.Remark = say("of", g.Of)
	if t.LimitPct == 0 {
		t.allowHeaders()
	}
	return t.decided()
}

// measure computes the procedure's goodput in per cent of the sum of others.
func (t *Target) measure(n *network, v report.Variant, congestion string, of []string) bool {
	row, ok := n.row(cell{v.Name, t.Procedure, congestion})
	if !ok {
		return false
	}
	sum, steadySum, variance := 0.0, 0.0, 0.0
	steady := row.Steady != nil
	for _, other := range of {
		r, ok := n.row(cell{v.Name, other, congestion})
		if !ok {
			return false
		}
		sum += *r.Median
		variance += *r.SD * *r.SD / float64(r.N)
		if steady = steady && r.Steady != nil; steady {
			steadySum += *r.Steady
		}
	}
	if sum == 0 {
		return false
	}
	pct := 100 * *row.Median / sum
	t.Measured, t.Steady = t.counted(pct), nil
	if steady && steadySum > 0 {
		t.Steady = t.counted(100 * *row.Steady / steadySum)
	}
	// Two standard errors of a ratio of means, from those of both.
	relative := *row.SD * *row.SD / float64(row.N) / max(*row.Mean**row.Mean, 1e-9)
	t.SpreadPct = max(leastSpread, 2*pct*math.Sqrt(relative+variance/(sum*sum)))
	return true
}

// counted returns the value that the target limits: a share or, for a cost, the part that is missing.
func (t *Target) counted(pct float64) *float64 {
	if !t.AtLeast {
		pct = 100 - pct
	}
	return &pct
}

// allowHeaders sets the limit to what MPTCP's headers leave, within the spread.
func (t *Target) allowHeaders() {
	if t.AtLeast {
		t.LimitPct = 100 - headerPct - t.SpreadPct
		return
	}
	t.LimitPct = headerPct + t.SpreadPct
}

// worst returns, for each procedure with a detour, its share of plain TCP's goodput in the place
// where it is farthest below what headers leave.
func (b *book) worst() []Target {
	var targets []Target
	places := map[string]int{}
	for _, c := range b.comparisons() {
		if c.network.paced() {
			continue
		}
		v := c.network.variant(c.row.Variant)
		t := Target{What: "is nowhere below plain TCP", Procedure: c.row.Procedure, Where: c.where(), AtLeast: true}
		t.measure(c.network, v, c.row.Congestion, []string{"tcp"})
		t.allowHeaders()
		if s, ok := settingOf(c.network.name, v); ok && c.row.Congestion == c.network.congestions[0] { // the published runs are of one
			if p, ok := b.publishedPct(s, t.Procedure, []string{"tcp"}); ok {
				t.Published = &p
			}
		}
		places[t.Procedure]++
		if c.worse() {
			t.Remark = c.cause()
		}
		at := slices.IndexFunc(targets, func(other Target) bool { return other.Procedure == t.Procedure })
		switch {
		case at < 0:
			targets = append(targets, t)
		case *t.Measured-t.LimitPct < *targets[at].Measured-targets[at].LimitPct:
			targets[at] = t
		}
	}
	for i := range targets {
		targets[i].Remark = say("worst", map[string]any{"Places": places[targets[i].Procedure], "Cause": targets[i].Remark})
		targets[i] = targets[i].decided()
	}
	return targets
}

// publishedPct computes the same from what was published.
func (b *book) publishedPct(s report.Setting, procedure string, of []string) (pct float64, ok bool) {
	got, ok := b.reference.Throughput(s, procedure)
	sum := 0.0
	for _, other := range of {
		p, found := b.reference.Throughput(s, other)
		ok = ok && found
		sum += p.MeanMbps
	}
	return 100 * got.MeanMbps / sum, ok
}

func (t Target) decided() Target {
	switch {
	case t.Measured == nil:
		t.Met = false
	case t.AtLeast:
		t.Met = *t.Measured >= t.LimitPct
	default:
		t.Met = *t.Measured <= t.LimitPct
	}
	return t
}

func targetsLine(targets []Target) string {
	met, open, most := 0, 0, 0.0
	for _, t := range targets {
		switch {
		case t.Measured == nil:
			open++
		case t.Met:
			met++
		default:
			most = max(most, math.Abs(*t.Measured-t.LimitPct))
		}
	}
	return say("targets", map[string]any{"All": len(targets), "Met": met, "Missed": len(targets) - met - open, "Open": open, "Most": most})
}

func targetTable(targets []Target) table {
	t := table{Title: "Targets, in per cent", Words: 2, Note: say("targets-columns", headerPct), Head: []string{"what dcol", "procedure, place", "", "wanted", "measured", "steady"}}
	published := slices.ContainsFunc(targets, func(target Target) bool { return target.Published != nil })
	if published {
		t.Head = append(t.Head, "published")
	}
	for _, target := range targets {
		verdict := entry{Text: "met", Mark: good}
		if target.Measured == nil {
			verdict = entry{Text: "no run", Mark: empty}
		} else if !target.Met {
			verdict = entry{Text: "NOT MET", Mark: bad}
		}
		sign := "≤"
		if target.AtLeast {
			sign = "≥"
		}
		where := entry{Text: target.Procedure, Below: []string{target.Where, target.Remark}}
		line := []entry{{Text: target.What}, where, verdict, {Text: fmt.Sprintf("%s %.2f", sign, target.LimitPct)}, value(target.Measured), value(target.Steady)}
		if published {
			line = append(line, value(target.Published))
		}
		t.Rows = append(t.Rows, line)
	}
	return t.grouped()
}
