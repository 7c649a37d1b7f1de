package present

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// ReportSchema is the version of Report.
const ReportSchema = "dcol.trace-recipes/1"

// Report has the verdicts of recipes on a path.
type Report struct {
	Schema      string    `json:"schema"`
	Name        string    `json:"name"`
	Destination string    `json:"destination"`
	Port        int       `json:"port"`
	Verdicts    []Verdict `json:"verdicts"`
	// Trace is the path, with the findings of all recipes. It is absent if there was only one recipe.
	Trace *Trace `json:"trace,omitempty"`
	drawn string // the same, for people
}

// Draw adds the path of a recipe's trace, with the findings of all recipes.
func (r *Report) Draw(p *trace.Path, found []compare.Finding) error {
	whole := *p
	whole.Findings = slices.Clone(p.Findings)
	for _, f := range found {
		if !slices.ContainsFunc(whole.Findings, func(g compare.Finding) bool { return samePlace(f, g) }) {
			whole.Findings = append(whole.Findings, f)
		}
	}
	slices.SortStableFunc(whole.Findings, func(f, g compare.Finding) int { return cmp.Or(f.After-g.After, f.By-g.By) })
	sent, err := p.Probe.Packet()
	if err != nil {
		return err
	}
	t := JSON(r.Name, &whole, sent)
	r.Trace = &t
	var b strings.Builder
	drawing(&b, &whole)
	r.drawn = b.String()
	return nil
}

// samePlace reports whether two findings are of one change: recipes find it by several packets.
func samePlace(f, g compare.Finding) bool {
	return f.Field == g.Field && f.Kind() == g.Kind() && f.After == g.After && f.By == g.By
}

// Verdict is a recipe's answer. Outcome is ok, changed, blocked or unknown, confidence certain, likely or open.
type Verdict struct {
	Recipe     string    `json:"recipe"`
	Question   string    `json:"question"`
	Outcome    string    `json:"outcome"`
	Confidence string    `json:"confidence"`
	Text       string    `json:"text"`
	Advice     string    `json:"advice,omitempty"` // what to do about it
	Evidence   []string  `json:"evidence"`
	Findings   []Finding `json:"findings"`
}

// Text writes a summary, then the path if there is one, then the evidence of each verdict.
func (r Report) Text(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "Path to %s (%s), port %d:\n\n", r.Name, r.Destination, r.Port)
	for _, v := range r.Verdicts {
		paragraph(w, fmt.Sprintf("  %-8s %-10s ", v.Outcome, v.Recipe), v.Text)
	}
	if r.drawn != "" {
		fmt.Fprintf(w, "\n%s", r.drawn)
	}
	for _, v := range r.Verdicts {
		fmt.Fprintf(w, "\n%s: %s\n", v.Recipe, v.Question)
		paragraph(w, "  ", fmt.Sprintf("%s (%s)", v.Text, v.Confidence))
		if v.Advice != "" {
			paragraph(w, "  What to do: ", v.Advice)
		}
		for _, e := range v.Evidence {
			paragraph(w, "  - ", e)
		}
	}
	return w.Flush()
}
