package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/stats"
)

// SuiteSchema is the version of the JSON form of a SuiteResult. Fields are only ever
// added under the same version.
const SuiteSchema = "dcol.suite-result/1"

// SuiteResult has the results of a suite's experiments. They ran as one: at the same time, on
// the same machine, with the same programs.
type SuiteResult struct {
	Schema      string      `json:"schema"`
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Started     time.Time   `json:"started"`
	Seconds     float64     `json:"seconds"`
	Environment Environment `json:"environment"`
	Fidelity    Fidelity    `json:"fidelity"`
	Parts       []*Result   `json:"parts"`
}

// Fidelity describes the accuracy of the runs. Its values about the machine are from valid runs. It counts the other runs,
// by cause.
type Fidelity struct {
	Runs      int           `json:"runs"` // that count
	Discarded int           `json:"discarded"`
	Failed    int           `json:"failed"` // because of dcol; not repeated, and not among the others
	Causes    map[Cause]int `json:"causes"` // of the discarded, counted
	// CPUShare is the busy part of the machine's processors during a run, 0..1.
	CPUShare Spread `json:"cpu_share"`
	// LinkP99MS is the 99th percentile of packets' lateness on the worst link of a run.
	LinkP99MS Spread `json:"link_lateness_p99_ms"`
	// ReferenceP99MS is the 99th percentile of the lateness of the reference flow's echoes.
	ReferenceP99MS Spread  `json:"reference_lateness_p99_ms"`
	Networks       float64 `json:"networks"` // at a time, mean over the runs
}

// Spread has the median and the maximum of a sample.
type Spread struct {
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// carried is the least share of the busiest link's packets from which a link counts. The keepalives
// of a session, at times a single packet, say nothing about accuracy.
const carried = 0.01

// Latest returns the link with the highest 99th percentile of lateness, among those that carried
// traffic. It returns the zero value if there is none.
func (r Run) Latest() LinkUse {
	var busiest uint64
	for _, u := range r.Links {
		busiest = max(busiest, u.Packets)
	}
	var latest LinkUse
	for _, u := range r.Links {
		if float64(u.Packets) >= carried*float64(busiest) && u.LatenessP99MS > latest.LatenessP99MS {
			latest = u
		}
	}
	return latest
}

// FidelityOf returns the fidelity of runs.
func FidelityOf(runs []Run) Fidelity {
	f := Fidelity{Causes: map[Cause]int{}}
	var cpu, link, reference, networks []float64
	for _, run := range runs {
		if run.Failed() {
			f.Failed++
			continue
		}
		if !run.Valid() {
			f.Discarded++
			f.Causes[run.Cause]++
			continue
		}
		f.Runs++
		cpu = append(cpu, run.CPUShare)
		link = append(link, run.Latest().LatenessP99MS)
		reference = append(reference, run.ReferenceP99MS)
		networks = append(networks, run.Networks)
	}
	if f.Runs > 0 {
		f.CPUShare, f.LinkP99MS, f.ReferenceP99MS = spread(cpu), spread(link), spread(reference)
		f.Networks = stats.Mean(networks)
	}
	return f
}

func spread(values []float64) Spread {
	s := stats.Summarize(values)
	return Spread{Median: s.Median, Max: s.Max}
}

// Met reports whether every expectation of every part is met.
func (s *SuiteResult) Met() bool {
	for _, part := range s.Parts {
		if !part.Met() {
			return false
		}
	}
	return true
}

// WriteJSON writes the result in its versioned form.
func (s *SuiteResult) WriteJSON(w io.Writer) error { return writeJSON(w, s) }

// WriteText writes the result for people: each part's tables, then the fidelity.
func (s *SuiteResult) WriteText(w io.Writer) error {
	for i, part := range s.Parts {
		if i > 0 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		if err := part.WriteText(w); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%s", s.Fidelity)
	return err
}

// String returns it as a few lines of text.
func (f Fidelity) String() string {
	if f.Runs == 0 {
		return "no run counts\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "fidelity: runs that count: %d, networks at a time: %.1f\n", f.Runs, f.Networks)
	t := table{
		{"median and worst run", "median", "worst"},
		{"processors busy, %", percent(f.CPUShare.Median), percent(f.CPUShare.Max)},
		{"packets late on the worst link, 99th percentile, ms", formatMS(f.LinkP99MS.Median), formatMS(f.LinkP99MS.Max)},
		{"reference flow late, 99th percentile, ms", formatMS(f.ReferenceP99MS.Median), formatMS(f.ReferenceP99MS.Max)},
	}
	t.write(&b)
	if f.Failed > 0 {
		fmt.Fprintf(&b, "  dcol failed: %d\n", f.Failed)
	}
	for _, cause := range slices.Sorted(maps.Keys(f.Causes)) {
		fmt.Fprintf(&b, "  repeated or given up: %d, %s\n", f.Causes[cause], cause)
	}
	return b.String()
}

func percent(share float64) string { return fmt.Sprintf("%.0f", 100*share) }

func formatMS(v float64) string { return fmt.Sprintf("%.2f", v) }
