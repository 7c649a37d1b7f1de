package page

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/detour-collective/dcol/lab/papers"
	"github.com/detour-collective/dcol/lab/report"

	"github.com/detour-collective/dcol/lab/scenario"
)

// Everything here is made up, to look like a suite's result: nothing was measured.

func loadTables(t *testing.T) report.Reference {
	t.Helper()
	tables, err := papers.Load()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// procedures are those of the papers' suite.
func procedures() []string {
	return []string{"mptcp-1", "dcol", "dcol-in-band", "dcol-openvpn", "dcol-wireguard", "tcp", "tcp-detour", "tcp-openvpn", "tcp-wireguard"}
}

func conditions() []report.Variant {
	variant := func(name, description string, loss, delay float64) report.Variant {
		return report.Variant{Name: name, Description: description, Coordinates: []report.Coordinate{
			{Axis: "loss", Unit: "%", Value: loss}, {Axis: "delay", Unit: "ms", Value: delay},
		}}
	}
	return []report.Variant{
		variant("base", "", 0, 5),
		variant("loss-0.5", "0.5 % loss on link 2", 0.5, 5),
		variant("loss-1", "1 % loss on link 2", 1, 5),
		variant("loss-2", "2 % loss on link 2", 2, 5),
		variant("loss-5", "5 % loss on link 2", 5, 5),
		variant("delay-20", "20 ms delay on link 2", 0, 20),
		variant("delay-50", "50 ms delay on link 2", 0, 50),
		variant("delay-100", "100 ms delay on link 2", 0, 100),
	}
}

// suiteOf is a suite's result around parts.
func suiteOf(name, description string, parts ...*report.Result) *report.SuiteResult {
	s := &report.SuiteResult{
		Schema: report.SuiteSchema, Name: name, Description: description,
		Started: time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC), Seconds: 1312,
		Environment: report.Environment{
			Kernel: "6.18.0-made-up", CPUs: 2, Backend: "wire", Congestion: "cubic, reno, bbr", Seed: 1,
			Programs: map[string]string{"iperf3": "iperf 3.12", "openvpn": "OpenVPN 2.6.3"},
		},
		Parts: parts,
	}
	var runs []report.Run
	for _, p := range parts {
		runs = append(runs, p.Runs...)
	}
	s.Fidelity = report.FidelityOf(runs)
	return s
}

// part summarizes runs that value makes up: goodput in Mbit/s of a procedure in
// a variant.
func part(name string, variants []report.Variant, procedures, congestions []string, repetitions int, value func(v report.Variant, procedure, congestion string) float64) *report.Result {
	random := rand.New(rand.NewPCG(1, 2))
	r := &report.Result{
		Schema: report.Schema, Scenario: name, Description: "A made-up network to look at.",
		Paths: []string{"direct", "waypoint"}, Variants: variants, Runs: []report.Run{},
		Links: []report.Link{
			{Link: "1", From: "client", To: "r1", RateMbps: 20, DelayMS: 5, QueueBytes: 250000},
			{Link: "1", From: "r1", To: "client", RateMbps: 20, DelayMS: 5, QueueBytes: 250000},
			{Link: "2", From: "r1", To: "r2", RateMbps: 10, DelayMS: 5, QueueBytes: 125000},
			{Link: "2", From: "r2", To: "r1", DelayMS: 5, QueueBytes: 125000},
		},
	}
	var names []string
	for _, v := range variants {
		names = append(names, v.Name)
		for _, procedure := range procedures {
			for _, congestion := range congestions {
				for i := range repetitions {
					middle := value(v, procedure, congestion)
					mbps := max(0.1, middle*(1+0.012*random.NormFloat64()))
					r.Runs = append(r.Runs, report.Run{
						Variant: v.Name, Procedure: procedure, Congestion: congestion, Repetition: i + 1, Attempt: 1,
						GoodputMbps: mbps, Paths: split(procedure, mbps, middle), CPUShare: 0.1 + 0.1*random.Float64(),
						Networks: 3.5, ReferenceP99MS: 0.2 + random.Float64(),
						Links: []report.LinkUse{{Link: "1", LatenessP99MS: 0.1 + 0.2*random.Float64()}},
					})
				}
			}
		}
	}
	r.Summarize(names, procedures, congestions, []scenario.Expectation{
		{Description: "the detour is worth having", That: `median("dcol") > 1.3 * median("tcp")`, Variants: []string{"base"}},
	})
	return r
}

func split(procedure string, mbps, middle float64) []report.PathUse {
	bytes := mbps * 1e6 / 8 * 9
	switch {
	case procedure == "tcp" || procedure == "mptcp-1":
		return []report.PathUse{{Path: "direct", Bytes: int64(bytes)}}
	case procedure[:3] == "tcp":
		return []report.PathUse{{Path: "waypoint", Bytes: int64(bytes)}}
	}
	detour := min(0.99, 9.3/middle)
	return []report.PathUse{{Path: "direct", Bytes: int64(bytes * (1 - detour))}, {Path: "waypoint", Bytes: int64(bytes * detour)}}
}

// repetition looks like a repetition of 2017: its own means with some noise, and
// guesses for what it had not.
func repetition(t *testing.T, repetitions int) *report.SuiteResult {
	tables := loadTables(t)
	in := func(network string) func(report.Variant, string, string) float64 {
		return func(v report.Variant, procedure, congestion string) float64 {
			alike := map[string]string{"dcol-in-band": "dcol", "dcol-wireguard": "dcol-openvpn", "tcp-wireguard": "tcp-openvpn"}
			if other, ok := alike[procedure]; ok {
				procedure = other
			}
			setting, _ := settingOf(network, v)
			p, ok := tables.Throughput(setting, procedure)
			if !ok {
				t.Fatalf("nothing published about %v %s", setting, procedure)
			}
			switch {
			case congestion == "bbr" && setting.LossPct > 0:
				return p.MeanMbps * 1.2
			case congestion == "reno":
				return p.MeanMbps * 0.97
			}
			return p.MeanMbps * 0.998
		}
	}
	few := []report.Variant{conditions()[0], conditions()[2], conditions()[7]}
	some := []string{"tcp", "tcp-detour", "mptcp-1", "dcol", "dcol-in-band"}
	return suiteOf("papers/dcol", "The evaluation of 2017 on today's kernel, made up.",
		part("core-limited", conditions(), procedures(), []string{"cubic"}, repetitions, in("core-limited")),
		part("symmetric", conditions(), procedures(), []string{"cubic"}, repetitions, in("symmetric")),
		part("core-limited", few, some, []string{"reno", "bbr"}, repetitions, in("core-limited")),
		part("symmetric", few, some, []string{"reno", "bbr"}, repetitions, in("symmetric")))
}

// beyond looks like a suite with one network of each other kind.
func beyond() *report.SuiteResult {
	procedures := []string{"tcp", "tcp-detour", "dcol", "dcol-in-band"}
	var grid, sizes []report.Variant
	for _, rate := range []float64{2.5, 5, 10, 20} {
		for _, delay := range []float64{5, 15, 30, 60, 120} {
			grid = append(grid, report.Variant{Name: fmt.Sprintf("rate-%gmbit_delay-%gms", rate, delay), Coordinates: []report.Coordinate{
				{Axis: "rate", Label: "rate of the detour", Unit: "Mbit/s", Value: rate},
				{Axis: "delay", Label: "delay of the detour, one way", Unit: "ms", Value: delay},
			}})
		}
	}
	for _, kb := range []float64{10, 100, 1000, 10000, 100000} {
		sizes = append(sizes, report.Variant{Name: fmt.Sprintf("%gKB", kb), Coordinates: []report.Coordinate{
			{Axis: "size", Label: "size of the file", Unit: "KB", Value: kb},
		}})
	}
	sweep := part("sweep", grid, procedures, []string{"cubic"}, 3, func(v report.Variant, procedure, _ string) float64 {
		rate, delay := v.Coordinates[0].Value, v.Coordinates[1].Value
		switch procedure {
		case "tcp":
			return 9.55
		case "tcp-detour":
			return rate * 0.95
		}
		return 9.55*(1-delay/1500) + 0.9*rate*math.Exp(-delay/200)
	})
	files := part("flow-sizes", sizes, procedures, []string{"cubic"}, 3, func(v report.Variant, _, _ string) float64 { return 9 })
	requests := part("requests", []report.Variant{{Name: "base"}, {Name: "slow-detour", Description: "the detour takes 100 ms more"}},
		procedures, []string{"cubic"}, 3, func(report.Variant, string, string) float64 { return 0.8 })
	withLatency(files, func(r report.Run) float64 {
		for _, v := range sizes {
			if v.Name == r.Variant {
				gain := map[string]float64{"dcol": 0.55, "dcol-in-band": 0.57}[r.Procedure]
				return 60 + v.Coordinates[0].Value*8/20*max(gain, 1-gain*2)
			}
		}
		return 0
	})
	withLatency(requests, func(r report.Run) float64 { return float64(30 + len(r.Procedure)*len(r.Variant)) })
	sweep.Procedures = []report.Procedure{{Name: "tcp", Description: "plain TCP, made up"}, {Name: "dcol", Description: "two paths"}}
	files.Procedures = []report.Procedure{{Name: "tcp", Description: "plain TCP, made up"}, {Name: "dcol", Description: "both paths"}}
	return suiteOf("beyond", "What the papers left out, made up.", sweep, files, requests, dying())
}

func withLatency(r *report.Result, ms func(report.Run) float64) {
	var variants []string
	for i, run := range r.Runs {
		m := ms(run)
		r.Runs[i].Latency = &report.Latency{Count: 100, P50MS: m, P90MS: 1.3 * m, P95MS: 1.5 * m, P99MS: 4 * m, MaxMS: 6 * m}
	}
	for _, v := range r.Variants {
		variants = append(variants, v.Name)
	}
	r.Summarize(variants, []string{"tcp", "tcp-detour", "dcol", "dcol-in-band"}, []string{"cubic"}, nil)
}

// dying is a network whose direct path goes away for a while.
func dying() *report.Result {
	r := part("direct-dies", []report.Variant{{Name: "base"}}, []string{"tcp", "dcol"}, []string{"cubic"}, 3,
		func(_ report.Variant, procedure, _ string) float64 {
			return map[string]float64{"tcp": 6, "dcol": 16}[procedure]
		})
	r.Marks = []report.Mark{{Seconds: 4, Label: "link direct down"}, {Seconds: 8, Label: "link direct up"}}
	for i, run := range r.Runs {
		series := report.Series{StepSeconds: 0.25, Paths: []report.PathSeries{{Path: "direct"}}}
		detour := report.PathSeries{Path: "waypoint"}
		for step := range 60 {
			mbps := 9.5
			if step >= 16 && step < 34 {
				mbps = 0
			}
			series.Paths[0].Mbps = append(series.Paths[0].Mbps, mbps)
			detour.Mbps = append(detour.Mbps, 9.4)
		}
		if run.Procedure == "dcol" {
			series.Paths = append(series.Paths, detour)
		}
		r.Runs[i].Series = series
	}
	return r
}
