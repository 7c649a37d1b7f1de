package present

import (
	"bufio"
	"fmt"
	"io"
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
}

// Verdict is a recipe's answer. Outcome is ok, changed, blocked or unknown, confidence certain, likely or open.
type Verdict struct {
	Recipe     string    `json:"recipe"`
	Question   string    `json:"question"`
	Outcome    string    `json:"outcome"`
	Confidence string    `json:"confidence"`
	Text       string    `json:"text"`
	Evidence   []string  `json:"evidence"`
	Findings   []Finding `json:"findings"`
}

// Text writes a summary, then the evidence of each verdict.
func (r Report) Text(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "Path to %s (%s), port %d:\n\n", r.Name, r.Destination, r.Port)
	for _, v := range r.Verdicts {
		fmt.Fprintf(w, "  %-8s %-10s %s\n", v.Outcome, v.Recipe, v.Text)
	}
	for _, v := range r.Verdicts {
		fmt.Fprintf(w, "\n%s: %s\n", v.Recipe, v.Question)
		fmt.Fprintf(w, "  %s (%s)\n", v.Text, v.Confidence)
		for _, e := range v.Evidence {
			fmt.Fprintf(w, "  - %s\n", e)
		}
	}
	return w.Flush()
}
