package runner

import (
	"fmt"
	"time"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
)

// maxLateness limits the 99th percentile of packets' lateness on a link. Runs above it do not count. It is a
// tenth of the direct path's round trip in the topologies of 2017. On a quiet machine the value is below 0.1
// ms.
const maxLateness = 3 * time.Millisecond

// MaxWait limits the 99th percentile of the lateness of the reference flow's echoes where goodput is
// measured. It is below the direct path's round trip. The bottleneck's queue holds six times as much, so a
// program that waits that long once in a hundred times loses nothing. Of 1728 runs of the papers' evaluation,
// those with echoes 15 to 20 ms late carried 0.02 % less than the median of all others of their kind, with no
// more spread than those below 3 ms. At 20 to 30 ms it was 0.2 %. Where latencies are measured, the limit is
// maxLateness.
const MaxWait = 20 * time.Millisecond

// echoLimit returns the allowed lateness of echoes in a run of the workload.
func echoLimit(w scenario.Workload) time.Duration {
	if w.HasLatency() {
		return maxLateness
	}
	return MaxWait
}

// LongestRun limits runs that have a size and no planned duration.
const LongestRun = 10 * time.Minute

// Judge returns the share of the allowed lateness that a run used. Above 1, the run does not count. It then also returns the
// cause: inaccurate links, or a machine too busy for the run's programs.
func Judge(w scenario.Workload, r report.Run) (most float64, cause report.Cause, why string) {
	for _, u := range r.Links {
		if u.EmulationDrops > 0 {
			return 2, report.CauseEmulation, fmt.Sprintf("the emulation of link %s lost %d packets itself", u.Link, u.EmulationDrops)
		}
	}
	u, limit := r.Latest(), echoLimit(w)
	link, echo := u.LatenessP99MS/stats.Milliseconds(maxLateness), r.ReferenceP99MS/stats.Milliseconds(limit)
	switch {
	case link > 1:
		cause, why = report.CauseLateLink, fmt.Sprintf("link %s from %s delivered 1%% of packets more than %.1f ms late (at most %v is sound): the machine is too busy",
			u.Link, u.From, u.LatenessP99MS, maxLateness)
	case echo > 1:
		cause, why = report.CauseLateReference, fmt.Sprintf("1%% of the reference flow's echoes came more than %.1f ms late (at most %v is sound): the machine is too busy",
			r.ReferenceP99MS, limit)
	}
	return max(link, echo), cause, why
}
