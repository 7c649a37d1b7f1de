package page

import (
	"fmt"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/report/published"
)

// Target is something that a repetition of the 2017 evaluation is to show. Values
// are per cent, computed from medians; the published ones from the means, which is
// what was printed. Measured is null where no run counts.
type Target struct {
	What      string   `json:"what"`
	Procedure string   `json:"procedure"`
	Where     string   `json:"where"`
	AtLeast   bool     `json:"at_least"` // or, if not, at most
	LimitPct  float64  `json:"limit_pct"`
	Measured  *float64 `json:"measured_pct"`
	Steady    *float64 `json:"steady_pct"` // from the fourth second that counts on
	Published *float64 `json:"published_pct"`
	Met       bool     `json:"met"`
	Remark    string   `json:"remark"`
}

// The part of a full segment's 1448 bytes that MPTCP's data sequence option leaves,
// with 24 bytes for the option as mainline Linux sends it with uploads, and as
// percentages: the most that MPTCP can carry of what TCP does, and what it costs.
const (
	possiblePct = 100 * (1448.0 - 24) / 1448
	headerPct   = 100 * 24.0 / 1448
)

// Conditions of link 2 in the networks of 2017.
const defaultDelayMS = 5

// targets are those whose networks belong to the suite.
func (b *book) targets() []Target {
	targets := []Target{}
	if core := b.network("core-limited"); core != nil {
		base := published.Setting{Network: core.name, DelayMS: defaultDelayMS}
		lossy := published.Setting{Network: core.name, LossPct: 1, DelayMS: defaultDelayMS}
		targets = append(targets,
			b.sum(core, base, "dcol", "tcp-detour", 98.5),
			b.sum(core, base, "dcol-in-band", "tcp-detour", 98.5),
			b.sum(core, base, "dcol-openvpn", "tcp-openvpn", 98.1),
			b.sum(core, base, "dcol-wireguard", "tcp-wireguard", 98.1),
			b.sum(core, lossy, "dcol", "tcp-detour", 90),
			b.sum(core, lossy, "dcol-in-band", "tcp-detour", 90))
	}
	if symmetric := b.network("symmetric"); symmetric != nil {
		base := published.Setting{Network: symmetric.name, DelayMS: defaultDelayMS}
		targets = append(targets,
			b.overhead(symmetric, base, "dcol"),
			b.overhead(symmetric, base, "dcol-in-band"))
	}
	return append(targets, b.worst()...)
}

// beyondHeaders says of a value that is better than MPTCP's headers let it be, by some
// percentage points, why that can be; unsure has the per cent.
func beyondHeaders(points float64) string {
	switch {
	case points <= 0:
		return ""
	case points <= 1:
		return "; that this is better is what the method gives to some runs (see Method), and chance"
	default:
		return "; that this is better is more than the method and chance explain"
	}
}

// steadyBeyond says of a steady value that is better than possible, by some percentage
// points, why that can be.
func steadyBeyond(points float64) string {
	if points <= 0.5 {
		return ""
	}
	return "; that steady is better than that is what losses in the first three seconds held up and is delivered after them"
}

// sum is what a procedure carries of the sum of plain TCP on the two paths.
func (b *book) sum(n *network, s published.Setting, procedure, detour string, limit float64) Target {
	t := Target{What: "carries the sum of what TCP carries on each path", Procedure: procedure, AtLeast: true, LimitPct: limit}
	of := func(value func(string) (float64, bool)) *float64 { return ofSum(value, procedure, detour) }
	t.Measured, t.Steady, t.Where = n.ratio(s, of)
	t.Published = ofSum(b.publishedMean(s), procedure, detour)
	t.Remark = fmt.Sprintf("the sum of tcp and %s", detour)
	if s.LossPct == 0 {
		t.Remark += fmt.Sprintf("; MPTCP's headers leave at most %.2f %%", possiblePct)
		if t.Measured != nil {
			t.Remark += beyondHeaders(*t.Measured - possiblePct)
		}
		if t.Steady != nil {
			t.Remark += steadyBeyond(*t.Steady - possiblePct)
		}
	}
	return t.decided()
}

// overhead is how much less than plain TCP a procedure carries.
func (b *book) overhead(n *network, s published.Setting, procedure string) Target {
	t := Target{What: "costs next to nothing where a detour cannot help", Procedure: procedure, LimitPct: 1.5}
	less := func(value func(string) (float64, bool)) *float64 {
		ratio := pctOf(value, procedure, "tcp")
		if ratio == nil {
			return nil
		}
		cost := 100 - *ratio
		return &cost
	}
	t.Measured, t.Steady, t.Where = n.ratio(s, less)
	t.Published = less(b.publishedMean(s))
	t.Remark = fmt.Sprintf("MPTCP's headers alone cost %.2f %%", headerPct)
	if t.Measured != nil {
		t.Remark += beyondHeaders(headerPct - *t.Measured)
	}
	if t.Steady != nil {
		t.Remark += steadyBeyond(headerPct - *t.Steady)
	}
	return t.decided()
}

// worst is, for each procedure with a detour, what it carries of plain TCP where
// that is least: over all networks, variants and congestion controls in which both
// ran and the program takes what there is.
func (b *book) worst() []Target {
	var procedures []string
	for _, n := range b.networks {
		for _, procedure := range n.procedures {
			if usesDetour(procedure) {
				procedures = appendNew(procedures, procedure)
			}
		}
	}
	var targets []Target
	for _, procedure := range procedures {
		t := Target{What: "nowhere more than 2 % below plain TCP", Procedure: procedure, AtLeast: true, LimitPct: 98}
		places := 0
		for _, n := range b.networks {
			if n.paced() {
				continue
			}
			for _, v := range n.variants {
				places += b.lower(&t, n, v)
			}
		}
		if places > 0 {
			t.Remark = "the worst of " + counted(places, "place", "places")
			if t.Steady != nil && *t.Measured < 100 {
				t.Remark += steadyBeyond(*t.Steady - 100)
			}
			targets = append(targets, t.decided())
		}
	}
	return targets
}

// lower makes a variant the target's worst place if it is, and counts the places
// looked at.
func (b *book) lower(t *Target, n *network, v report.Variant) (places int) {
	for _, congestion := range n.congestions {
		ratio := pctOf(n.medians(v.Name, congestion), t.Procedure, "tcp")
		if ratio == nil {
			continue
		}
		places++
		if t.Measured == nil || *ratio < *t.Measured {
			t.Measured, t.Steady, t.Where = ratio, pctOf(n.steadies(v.Name, congestion), t.Procedure, "tcp"), place(n, v, congestion)
			t.Published = nil
			if s, ok := settingOf(n.name, v); ok && congestion == n.congestions[0] { // 2017's runs are of one
				t.Published = pctOf(b.publishedMean(s), t.Procedure, "tcp")
			}
		}
	}
	return places
}

func (t Target) decided() Target {
	if t.Measured == nil {
		t.Met = false
		return t
	}
	t.Met = *t.Measured >= t.LimitPct
	if !t.AtLeast {
		t.Met = *t.Measured <= t.LimitPct
	}
	return t
}

// ratio computes something from a setting's medians with the first congestion
// control that has it all, and the same of what was steady.
func (n *network) ratio(s published.Setting, of func(func(string) (float64, bool)) *float64) (value, steady *float64, where string) {
	v, ok := n.at(s.LossPct, s.DelayMS)
	if !ok {
		return nil, nil, n.name
	}
	for _, congestion := range n.congestions {
		if value := of(n.medians(v.Name, congestion)); value != nil {
			return value, of(n.steadies(v.Name, congestion)), place(n, v, congestion)
		}
	}
	return nil, nil, n.name + ", " + title(v)
}

func place(n *network, v report.Variant, congestion string) string {
	return fmt.Sprintf("%s, %s, %s", n.name, title(v), congestion)
}

// medians looks procedures' medians up.
func (n *network) medians(variant, congestion string) func(string) (float64, bool) {
	return func(procedure string) (float64, bool) { return n.median(cell{variant, procedure, congestion}) }
}

// steadies looks up what procedures carried from the fourth second that counts on.
func (n *network) steadies(variant, congestion string) func(string) (float64, bool) {
	return func(procedure string) (float64, bool) { return n.steady(cell{variant, procedure, congestion}) }
}

func (b *book) publishedMean(s published.Setting) func(string) (float64, bool) {
	return func(procedure string) (float64, bool) {
		v, ok := b.published.Throughput(s, procedure)
		return v.MeanMbps, ok
	}
}

func ofSum(value func(string) (float64, bool), procedure, detour string) *float64 {
	got, ok := value(procedure)
	direct, okDirect := value("tcp")
	other, okOther := value(detour)
	if !ok || !okDirect || !okOther || direct+other == 0 {
		return nil
	}
	pct := 100 * got / (direct + other)
	return &pct
}

func pctOf(value func(string) (float64, bool), procedure, of string) *float64 {
	got, ok := value(procedure)
	whole, okWhole := value(of)
	if !ok || !okWhole || whole == 0 {
		return nil
	}
	pct := 100 * got / whole
	return &pct
}
