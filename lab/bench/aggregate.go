package bench

import (
	"context"
	"path/filepath"

	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/scenarios"
	"github.com/detour-collective/dcol/lab/stats"
)

// headerNote explains why neither target can be met in full. Captured on 6.18: each full segment carries a
// DSS option of 22 bytes, padded to 24 (a 4-byte DATA_ACK and, as Linux always uses them, 8-byte data
// sequence numbers). That leaves 1424 bytes of payload where TCP has 1448. The 2017 kernel needed 20 bytes
// (RFC 8684, 3.3).
const headerNote = "MPTCP's own headers leave 1424 of TCP's 1448 bytes in each segment on this kernel: 0.9834 is the most there can be"

// aggregateRepetitions is the minimum for a comparison with the papers.
const aggregateRepetitions = 10

// aggregate repeats the papers' two main comparisons with CUBIC. If the core is the bottleneck, it compares dcol with
// the sum of TCP's goodputs on each path. If the access link is, it compares dcol with plain TCP. Procedures take
// turns, so that mapped and in-band detours are compared too.
func aggregate(ctx context.Context, o Options) ([]Measurement, error) {
	limited, err := runScenario(ctx, o, "core-limited")
	if err != nil {
		return nil, err
	}
	sum := median(limited, "tcp") + median(limited, "tcp-detour")
	var found []Measurement
	for _, procedure := range []string{"dcol", "dcol-in-band"} {
		m := of("core-limited: "+procedure+" against the sum of the paths", "Mbit/s", limited.Goodput(scenario.Base, procedure)).against(sum)
		m.Note = headerNote
		found = append(found, m.target("ratio >= 0.985", *m.Ratio >= 0.985))
	}
	inBand := of("core-limited: dcol-in-band against dcol", "Mbit/s", limited.Goodput(scenario.Base, "dcol-in-band")).against(median(limited, "dcol"))
	single := of("core-limited: MPTCP with one subflow against TCP", "Mbit/s", limited.Goodput(scenario.Base, "mptcp-1")).against(median(limited, "tcp"))
	found = append(found, inBand, single)

	symmetric, err := runScenario(ctx, o, "symmetric")
	if err != nil {
		return found, err
	}
	for _, procedure := range []string{"dcol", "dcol-in-band"} {
		m := of("symmetric: "+procedure+" against plain TCP", "Mbit/s", symmetric.Goodput(scenario.Base, procedure)).against(median(symmetric, "tcp"))
		m.Note = headerNote
		found = append(found, m.target("ratio >= 0.984", *m.Ratio >= 0.984))
	}
	return found, nil
}

// aggregateProcedures are the compared procedures.
var aggregateProcedures = []string{"tcp", "tcp-detour", "mptcp-1", "dcol", "dcol-in-band"}

func runScenario(ctx context.Context, o Options, name string) (report.Measured, error) {
	s, err := scenarios.Open(name)
	if err != nil {
		return report.Measured{}, err
	}
	result, err := experiment.Run(ctx, s, experiment.Options{
		Programs: o.Programs, Out: filepath.Join(o.Out, name), Repetitions: aggregateRepetitions, Procedures: aggregateProcedures,
		Stderr: o.Stderr, Jobs: runner.Automatic, Log: o.Log,
	})
	if err != nil {
		return report.Measured{}, err
	}
	return result.Under(s.Congestion), nil
}

func median(r report.Measured, procedure string) float64 {
	return stats.Median(r.Goodput(scenario.Base, procedure))
}
