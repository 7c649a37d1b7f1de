// Package demo shows a newcomer what dcol does. An unmodified curl downloads from an unmodified nginx,
// without dcol and with it, and once more while the waypoint dies. This package prints; lab/experiment runs
// the downloads.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/units"
	"github.com/detour-collective/dcol/lab/chart"
	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/jsonfile"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/scenarios"
)

// Schema is the version of Result.
const Schema = "dcol.demo/1"

const (
	size = 16_000_000 // bytes to download: seconds at 10 Mbit/s, long enough to see
	// settling is left out of the rates: slow start, and the join itself.
	settling = units.Duration(time.Second)
	killAt   = units.Duration(3 * time.Second)
)

// Result is out/demo/result.json.
type Result struct {
	Schema        string           `json:"schema"`
	Kernel        string           `json:"kernel"`
	Backend       string           `json:"backend"`
	TCPMbps       float64          `json:"tcp_mbps"`
	DetourTCPMbps float64          `json:"detour_tcp_mbps"`
	DColMbps      float64          `json:"dcol_mbps"`
	RatioOfSum    float64          `json:"ratio_of_sum"`
	SubflowBytes  map[string]int64 `json:"subflow_bytes"` // by path, of the download with dcol
	SHA256OK      bool             `json:"sha256_ok"`     // of all downloads
	// Exact: the machine had the time to emulate the links as declared.
	Exact        bool    `json:"exact"`
	LongestStall float64 `json:"longest_stall_ms"`
}

// act is one download.
type act struct {
	procedure scenario.Procedure
	title     string
	events    []scenario.Event
}

// Run shows the demo: the progress on o.Stderr, the result on stdout.
func Run(ctx context.Context, o experiment.Options, stdout io.Writer) error {
	s, err := network()
	if err != nil {
		return err
	}
	progress := newProgress(o.Stderr)
	progress.opening(s)
	lab, err := experiment.Open(ctx, s, o)
	if err != nil {
		return err
	}
	runs, runErr := perform(ctx, lab, progress)
	environment, envErr := lab.Environment(ctx)
	if err := errors.Join(runErr, envErr, lab.Close()); err != nil {
		return err
	}
	result := conclude(runs, environment)
	if err := write(o.Out, result, runs); err != nil {
		return err
	}
	return result.table(stdout, o.Out)
}

// network returns the core-limited one of the papers, with a download on it.
func network() (*scenario.Scenario, error) {
	s, err := scenarios.Open("core-limited")
	if err != nil {
		return nil, err
	}
	s.Workload.Kind, s.Workload.Size, s.Workload.Duration, s.Workload.Skip = scenario.HTTP, size, 0, settling
	s.Workload.Count, s.Workload.Port = 1, 80
	return s, nil
}

// acts returns the downloads, in the order of the runs they make.
func acts(s *scenario.Scenario) []act {
	procedure := func(name string) scenario.Procedure {
		p, _ := s.Procedure(name)
		return p
	}
	return []act{
		{procedure("tcp"), "curl without dcol: plain TCP on the Internet's route", nil},
		{procedure("tcp-detour"), "plain TCP through the waypoint only, to know what the detour gives", nil},
		{procedure("dcol"), "the same curl with dcol", nil},
		{procedure("dcol"), "with dcol again, and the waypoint is killed in mid-download",
			[]scenario.Event{{At: killAt, Kill: "waypoint"}}},
	}
}

func perform(ctx context.Context, lab *experiment.Lab, progress *progress) ([]report.Run, error) {
	base, _ := lab.Scenario.Variant(scenario.Base)
	var runs []report.Run
	for i, a := range acts(lab.Scenario) {
		progress.begin(i+1, a.title)
		run, err := lab.Execute(ctx, experiment.Order{
			Variant: base, Procedure: a.procedure, Events: a.events, Log: fmt.Sprintf("act-%d", i+1),
			Live: func(l experiment.Live) { progress.live(l, size) },
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.title, err)
		}
		progress.end(run)
		runs = append(runs, run)
	}
	return runs, nil
}

func conclude(runs []report.Run, e report.Environment) Result {
	tcp, detour, dcol, killed := runs[0], runs[1], runs[2], runs[3]
	r := Result{
		Schema: Schema, Kernel: e.Kernel, Backend: e.Backend,
		TCPMbps: tcp.GoodputMbps, DetourTCPMbps: detour.GoodputMbps, DColMbps: dcol.GoodputMbps,
		RatioOfSum:   dcol.GoodputMbps / (tcp.GoodputMbps + detour.GoodputMbps),
		SubflowBytes: map[string]int64{}, SHA256OK: true, Exact: true, LongestStall: killed.LongestStallMS,
	}
	for _, p := range dcol.Paths {
		r.SubflowBytes[p.Path] = p.Bytes
	}
	for _, run := range runs {
		r.SHA256OK = r.SHA256OK && run.SHA256OK != nil && *run.SHA256OK
		r.Exact = r.Exact && run.Valid()
	}
	return r
}

// write leaves result.json and the plots in the folder.
func write(out string, r Result, runs []report.Run) error {
	if err := jsonfile.Write(filepath.Join(out, "result.json"), r); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	levels := []chart.Level{{Value: r.TCPMbps, Label: "plain TCP"}, {Value: r.TCPMbps + r.DetourTCPMbps, Label: "sum of the paths"}}
	both := runs[2].Series.Chart(nil, nil)
	both.Title, both.Subtitle, both.Levels = "One download with dcol", "core-limited: two paths of 10 Mbit/s; curl from nginx", levels
	if err := both.Save(filepath.Join(out, "goodput")); err != nil {
		return err
	}
	killed := runs[3].Series.Chart(nil, []report.Mark{{Seconds: killAt.Seconds(), Label: "waypoint killed"}})
	killed.Title, killed.Levels = "The waypoint dies in mid-download", levels[:1]
	killed.Subtitle = fmt.Sprintf("the download ends intact; longest stall %.0f ms", r.LongestStall)
	return killed.Save(filepath.Join(out, "waypoint-killed"))
}
