// Package demo shows a newcomer what dcol does. An unmodified curl downloads from an unmodified nginx,
// without dcol and with it, once more while the waypoint dies, and from a server without MPTCP through a converter.
// This package prints; lab/experiment runs the downloads.
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
	Schema        string  `json:"schema"`
	Kernel        string  `json:"kernel"`
	Backend       string  `json:"backend"`
	TCPMbps       float64 `json:"tcp_mbps"`
	DetourTCPMbps float64 `json:"detour_tcp_mbps"`
	DColMbps      float64 `json:"dcol_mbps"`
	RatioOfSum    float64 `json:"ratio_of_sum"`
	// ConverterMbps is of the server without MPTCP, through a converter.
	ConverterMbps       float64          `json:"converter_mbps"`
	ConverterRatioOfSum float64          `json:"converter_ratio_of_sum"`
	SubflowBytes        map[string]int64 `json:"subflow_bytes"` // by path, of the download with dcol
	SHA256OK            bool             `json:"sha256_ok"`     // of all downloads
	// Exact: the machine had the time to emulate the links as declared.
	Exact        bool    `json:"exact"`
	LongestStall float64 `json:"longest_stall_ms"`
}

// act is one download.
type act struct {
	procedure string
	title     string
	events    []scenario.Event
}

// scene is a network and the downloads in it.
type scene struct {
	network string // a scenario that comes with dcol
	acts    []act
}

// scenes returns all downloads, in the order of the runs that they make.
func scenes() []scene {
	return []scene{
		{"core-limited", []act{
			{"tcp", "curl without dcol: plain TCP on the Internet's route", nil},
			{"tcp-detour", "plain TCP through the waypoint only, to know what the detour gives", nil},
			{"dcol", "the same curl with dcol", nil},
			{"dcol", "with dcol again, and the waypoint is killed in mid-download", []scenario.Event{{At: killAt, Kill: "waypoint"}}},
		}},
		{"converter-core-limited", []act{
			{"converter-socks5", "a server that speaks only plain TCP, through a member's converter near it", nil},
		}},
	}
}

// Run shows the demo: the progress on o.Stderr, the result on stdout.
func Run(ctx context.Context, o experiment.Options, stdout io.Writer) error {
	progress := newProgress(o.Stderr)
	var runs []report.Run
	var environment report.Environment
	for _, scene := range scenes() {
		s, err := network(scene.network)
		if err != nil {
			return err
		}
		if len(runs) == 0 {
			progress.opening(s)
		}
		found, in, err := perform(ctx, s, scene.acts, o, progress, len(runs))
		if err != nil {
			return err
		}
		runs, environment = append(runs, found...), in
	}
	result := conclude(runs, environment)
	if err := write(o.Out, result, runs); err != nil {
		return err
	}
	return result.table(stdout, o.Out)
}

// network returns a scenario with a download on it.
func network(name string) (*scenario.Scenario, error) {
	s, err := scenarios.Open(name)
	if err != nil {
		return nil, err
	}
	s.Workload.Kind, s.Workload.Size, s.Workload.Duration, s.Workload.Skip = scenario.HTTP, size, 0, settling
	s.Workload.Count, s.Workload.Port = 1, 80
	return s, nil
}

// perform builds a network and makes its downloads. before is the number of earlier ones.
func perform(ctx context.Context, s *scenario.Scenario, acts []act, o experiment.Options, progress *progress, before int) (
	runs []report.Run, in report.Environment, err error,
) {
	lab, err := experiment.Open(ctx, s, o)
	if err != nil {
		return nil, in, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	base, _ := s.Variant(scenario.Base)
	for _, a := range acts {
		procedure, _ := s.Procedure(a.procedure)
		before++
		progress.begin(before, a.title)
		run, err := lab.Execute(ctx, experiment.Order{
			Variant: base, Procedure: procedure, Events: a.events, Log: fmt.Sprintf("act-%d", before),
			Live: func(l experiment.Live) { progress.live(l, size) },
		})
		if err != nil {
			return nil, in, fmt.Errorf("%s: %w", a.title, err)
		}
		progress.end(run)
		runs = append(runs, run)
	}
	in, err = lab.Environment(ctx)
	return runs, in, err
}

func conclude(runs []report.Run, e report.Environment) Result {
	tcp, detour, dcol, killed, converted := runs[0], runs[1], runs[2], runs[3], runs[4]
	sum := tcp.GoodputMbps + detour.GoodputMbps
	r := Result{
		Schema: Schema, Kernel: e.Kernel, Backend: e.Backend,
		TCPMbps: tcp.GoodputMbps, DetourTCPMbps: detour.GoodputMbps, DColMbps: dcol.GoodputMbps,
		RatioOfSum:    dcol.GoodputMbps / sum,
		ConverterMbps: converted.GoodputMbps, ConverterRatioOfSum: converted.GoodputMbps / sum,
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
	converted := runs[4].Series.Chart(nil, nil)
	converted.Title, converted.Levels = "A server without MPTCP, through a converter", levels
	converted.Subtitle = "the same two paths, to a converter near the server; curl uses the agent's SOCKS5 proxy"
	if err := converted.Save(filepath.Join(out, "converter")); err != nil {
		return err
	}
	killed := runs[3].Series.Chart(nil, []report.Mark{{Seconds: killAt.Seconds(), Label: "waypoint killed"}})
	killed.Title, killed.Levels = "The waypoint dies in mid-download", levels[:1]
	killed.Subtitle = fmt.Sprintf("the download ends intact; longest stall %.0f ms", r.LongestStall)
	return killed.Save(filepath.Join(out, "waypoint-killed"))
}
