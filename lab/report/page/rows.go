package page

import "github.com/detour-collective/dcol/lab/report"

// Row is one line of result.json and result.csv: the runs of one procedure in one variant of a network with one
// congestion control. Goodput is in Mbit/s (10^6 bit/s of the program's bytes); it is null if no run counts.
type Row struct {
	Network string `json:"network"` // the scenario
	Variant string `json:"variant"`
	// LossPct and DelayMS are the conditions of the varied link, one way; null if none is said to be varied.
	LossPct    *float64 `json:"loss_pct"`
	DelayMS    *float64 `json:"delay_ms"`
	Procedure  string   `json:"procedure"`
	Congestion string   `json:"congestion_control"`
	N          int      `json:"n"`
	Discarded  int      `json:"discarded"` // runs that do not count
	Failed     int      `json:"failed"`    // runs in which dcol failed

	Mean   *float64 `json:"mean"`
	SD     *float64 `json:"sd"`
	Median *float64 `json:"median"`
	Q1     *float64 `json:"q1"`
	Q3     *float64 `json:"q3"`
	Min    *float64 `json:"min"`
	Max    *float64 `json:"max"`
	// Steady is the median goodput from the fourth second that counts on. It is null if that was not measured.
	Steady *float64 `json:"steady"`

	// Published numbers of the same place, or null. Ratio is our mean over the published one.
	PublishedMean       *float64 `json:"published_mean"`
	PublishedSD         *float64 `json:"published_sd"`
	PublishedN          *int     `json:"published_n"`
	PublishedCongestion *string  `json:"published_congestion_control"`
	Ratio               *float64 `json:"ratio"`

	// BytesPerPath holds the median over the runs of each path's bytes. Published bytes come from a single trial.
	BytesPerPath          map[string]float64 `json:"bytes_per_path"`
	PublishedBytesPerPath map[string]float64 `json:"published_bytes_per_path"`

	CompletionSeconds float64 `json:"completion_seconds"` // median
	LongestStallMS    float64 `json:"longest_stall_ms"`   // the longest
	Retransmitted     float64 `json:"retransmitted_segments"`

	// Latency has the medians over the runs; null if the workload has none.
	Latency *report.Latency `json:"latency"`

	Coordinates []report.Coordinate `json:"coordinates"` // of the variant in a sweep
}

// Axes of coordinates that are the conditions of a link that is varied.
const (
	lossAxis  = "loss"
	delayAxis = "delay"
)

func coordinate(v report.Variant, axis string) *float64 {
	for _, c := range v.Coordinates {
		if c.Axis == axis {
			return &c.Value
		}
	}
	return nil
}

// settingOf returns the conditions of the variant, if it says them.
func settingOf(network string, v report.Variant) (report.Setting, bool) {
	loss, delay := coordinate(v, lossAxis), coordinate(v, delayAxis)
	if loss == nil || delay == nil {
		return report.Setting{}, false
	}
	return report.Setting{Network: network, LossPct: *loss, DelayMS: *delay}, true
}

func newRow(part *report.Result, from report.Row, v report.Variant, ref report.Reference) Row {
	row := Row{
		Network: part.Scenario, Variant: from.Variant, Procedure: from.Procedure, Congestion: from.Congestion,
		LossPct: coordinate(v, lossAxis), DelayMS: coordinate(v, delayAxis), Coordinates: v.Coordinates,
		N: from.N, Discarded: from.Discarded, Failed: from.Failed, BytesPerPath: from.PathBytes,
		CompletionSeconds: from.CompletionSeconds, LongestStallMS: from.LongestStallMS, Retransmitted: from.Retransmitted, Latency: from.Latency,
	}
	if from.N > 0 {
		g := from.GoodputMbps
		if from.SteadyMbps > 0 {
			row.Steady = &from.SteadyMbps
		}
		row.Mean, row.SD, row.Median, row.Q1, row.Q3, row.Min, row.Max = &g.Mean, &g.SD, &g.Median, &g.Q1, &g.Q3, &g.Min, &g.Max
	}
	setting, ok := settingOf(part.Scenario, v)
	if !ok {
		return row
	}
	if p, ok := ref.Throughput(setting, from.Procedure); ok {
		row.PublishedMean, row.PublishedSD, row.PublishedN, row.PublishedCongestion = &p.MeanMbps, &p.SDMbps, &p.Trials, &p.Congestion
		if row.Mean != nil {
			ratio := *row.Mean / p.MeanMbps
			row.Ratio = &ratio
		}
	}
	if s, ok := ref.Split(setting, from.Procedure); ok && len(part.Paths) == 2 {
		row.PublishedBytesPerPath = map[string]float64{
			part.Paths[0]: float64(s.DirectBytes), part.Paths[1]: float64(s.DetourBytes),
		}
	}
	return row
}
