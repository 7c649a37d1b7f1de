// Package report summarises the records of probe traffic as text, JSON and an HTML page.
package report

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/probe"
)

// Schema is the version of Summary's JSON.
const Schema = "dcol.probe-summary/1"

// Summary summarises records.
type Summary struct {
	Schema  string      `json:"schema"`
	Records int         `json:"records"`
	Damaged int         `json:"damaged_lines"` // number of lines that could not be read
	From    *time.Time  `json:"from,omitempty"`
	To      *time.Time  `json:"to,omitempty"`
	Gaps    []probe.Gap `json:"gaps"`
	Series  []Series    `json:"series"`

	records []probe.Record
}

// Series summarises the records of one server, shape and way.
type Series struct {
	Server  string      `json:"server"`
	Shape   probe.Shape `json:"shape"`
	Way     probe.Way   `json:"way"`
	Measure string      `json:"measure"`
	Unit    string      `json:"unit"`
	// Exchanges counts all exchanges, Failed those that did not complete, FellBack those that used plain TCP although MPTCP
	// was requested.
	Exchanges int            `json:"exchanges"`
	Failed    int            `json:"failed"`
	FellBack  int            `json:"fell_back"`
	Errors    map[string]int `json:"errors,omitempty"`
	Values    *Quantiles     `json:"values"` // nil: there are no values
	Connect   *Quantiles     `json:"connect_ms"`
	// Replies counts measured replies by the path that brought them.
	Replies map[string]int `json:"reply_paths,omitempty"`

	values []float64 // sorted
}

// Quantiles describes the distribution of values.
type Quantiles struct {
	Count int     `json:"count"`
	Min   float64 `json:"min"`
	P10   float64 `json:"p10"`
	P25   float64 `json:"p25"`
	P50   float64 `json:"p50"`
	P75   float64 `json:"p75"`
	P90   float64 `json:"p90"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Mean  float64 `json:"mean"`
}

// Summarise summarises records, which must be sorted by time. gap is the limit of probe.Gaps.
func Summarise(records []probe.Record, damaged int, gap time.Duration) *Summary {
	s := &Summary{Schema: Schema, Records: len(records), Damaged: damaged, Gaps: probe.Gaps(records, gap), records: records}
	if len(records) > 0 {
		s.From, s.To = &records[0].Time, &records[len(records)-1].Time
	}
	if s.Gaps == nil {
		s.Gaps = []probe.Gap{}
	}
	type key struct {
		server string
		shape  probe.Shape
		way    probe.Way
	}
	all := map[key]*Series{}
	connects := map[key][]float64{}
	for _, r := range records {
		k := key{r.Server, r.Shape, r.Way}
		one := all[k]
		if one == nil {
			one = &Series{Server: r.Server, Shape: r.Shape, Way: r.Way, Errors: map[string]int{}, Replies: map[string]int{}}
			one.Measure, one.Unit = r.Shape.Measure()
			all[k] = one
		}
		one.Exchanges++
		if r.FellBack {
			one.FellBack++
		}
		if r.Error != "" {
			one.Failed++
			one.Errors[r.Error]++
			continue
		}
		one.values = append(one.values, r.Values...)
		connects[k] = append(connects[k], r.Connect)
		for _, path := range r.Replies {
			one.Replies[path]++
		}
	}
	for k, one := range all {
		slices.Sort(one.values)
		slices.Sort(connects[k])
		one.Values, one.Connect = quantiles(one.values), quantiles(connects[k])
	}
	s.Series = sorted(slices.Collect(maps.Values(all)))
	return s
}

// sorted orders series by server, then by shape and way in the order of probe.Shapes and probe.Ways.
func sorted(all []*Series) []Series {
	series := make([]Series, len(all))
	for i, s := range all {
		series[i] = *s
	}
	slices.SortFunc(series, func(a, b Series) int {
		switch {
		case a.Server != b.Server && a.Server < b.Server:
			return -1
		case a.Server != b.Server:
			return 1
		case a.Shape != b.Shape:
			return slices.Index(probe.Shapes(), a.Shape) - slices.Index(probe.Shapes(), b.Shape)
		default:
			return slices.Index(probe.Ways(), a.Way) - slices.Index(probe.Ways(), b.Way)
		}
	})
	return series
}

// quantiles describes values, which must be sorted.
func quantiles(sorted []float64) *Quantiles {
	if len(sorted) == 0 {
		return nil
	}
	at := func(share float64) float64 { return quantile(sorted, share) }
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	return &Quantiles{
		Count: len(sorted), Min: sorted[0], P10: at(.1), P25: at(.25), P50: at(.5), P75: at(.75), P90: at(.9), P95: at(.95), P99: at(.99),
		Max: sorted[len(sorted)-1], Mean: sum / float64(len(sorted)),
	}
}

// quantile returns the least value such that the given share of all values do not exceed it.
func quantile(sorted []float64, share float64) float64 {
	return sorted[max(0, min(len(sorted)-1, int(math.Ceil(share*float64(len(sorted))))-1))]
}

// median returns the median of values in any order, or 0 if there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return quantile(slices.Sorted(slices.Values(values)), 0.5)
}
