package experiment

import (
	"maps"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/runner"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/stats"
	"github.com/detour-collective/dcol/lab/testbed"
)

// result sums up the runs of each part. cut is true if runs are missing.
func (e *experiment) result(cut bool) *report.SuiteResult {
	all := make([]report.Run, len(e.runs))
	for i, r := range e.runs {
		all[i] = r.Run
	}
	s := &report.SuiteResult{
		Schema: report.SuiteSchema, Name: e.suite.Name, Description: e.suite.Description,
		Started: e.ledger.Head.Started, Seconds: e.ledger.Head.Seconds,
		Environment: e.environment, Fidelity: report.FidelityOf(all),
	}
	s.Environment.Congestion = strings.Join(congestions(e.suite.Parts), ", ")
	for _, p := range e.suite.Parts {
		s.Parts = append(s.Parts, e.partResult(p, cut))
	}
	return s
}

func (e *experiment) partResult(p scenario.Part, cut bool) *report.Result {
	r := &report.Result{
		Schema: report.Schema, Scenario: p.Of.Name, Description: p.Of.Description,
		Started: e.ledger.Head.Started, Seconds: e.ledger.Head.Seconds, Environment: e.environment,
		Paths: append([]string{scenario.DirectPath}, p.Of.WithRole(scenario.RoleWaypoint)...),
		Links: linksOf(p.Of), Marks: Marks(p.Of.Events), Runs: []report.Run{},
	}
	r.Environment.Programs = maps.Clone(e.environment.Programs)
	r.Environment.Congestion, r.Environment.Seed = strings.Join(p.Congestions, ", "), p.Of.Seed
	for _, name := range p.Variants {
		v, _ := p.Of.Variant(name)
		r.Variants = append(r.Variants, report.Variant{Name: name, Description: v.Description, Coordinates: coordinates(p.Of, v)})
	}
	for _, name := range p.Procedures {
		procedure, _ := p.Of.Procedure(name)
		r.Procedures = append(r.Procedures, report.Procedure{Name: name, Description: procedure.Description})
	}
	wanted := map[runner.Key]bool{}
	for repetition := 1; repetition <= p.Repetitions; repetition++ {
		for _, t := range tasksOf(p, repetition) {
			wanted[t.Key()] = true
		}
	}
	for _, recorded := range e.runs {
		if wanted[recorded.Key()] {
			r.Runs = append(r.Runs, recorded.Run)
		}
	}
	r.Summarize(p.Variants, p.Procedures, p.Congestions, p.Of.Expects)
	if cut { // an expectation that cannot be decided yet has not failed
		r.Expectations = slices.DeleteFunc(r.Expectations, func(x report.Expectation) bool { return x.Error != "" })
	}
	return r
}

// linksOf returns the scenario's links as declared, one entry for each direction.
func linksOf(s *scenario.Scenario) []report.Link {
	var links []report.Link
	for _, l := range s.Links {
		ab, ba := linkParams(l.Shape, l.MTU)
		links = append(links, linkOf(l.Name, l.A, l.B, ab), linkOf(l.Name, l.B, l.A, ba))
	}
	return links
}

func linkOf(name, from, to string, p testbed.LinkParams) report.Link {
	return report.Link{
		Link: name, From: from, To: to, RateMbps: float64(p.Rate) / 1e6, DelayMS: stats.Milliseconds(p.Delay),
		JitterMS: stats.Milliseconds(p.Jitter), LossPct: 100 * p.Loss, QueueBytes: p.QueueBytes(),
	}
}

// coordinates returns the values by which a chart places a variant: its position on the axes of its sweep, its
// workload's size, and the loss and delay of the link that the scenario varies, in the direction from a to b.
func coordinates(s *scenario.Scenario, v scenario.Variant) []report.Coordinate {
	found := append([]report.Coordinate{}, v.Coordinates...)
	if size := v.Workload.Size; size > 0 {
		found = append(found, report.Coordinate{Axis: "size", Label: "size", Unit: "KB", Value: float64(size) / 1e3})
	}
	i := slices.IndexFunc(s.Links, func(l scenario.Link) bool { return l.Name == s.Varied })
	if i < 0 {
		return found
	}
	link, _ := s.Shapes(v)[i].Directions()
	loss, delay := 0.0, 0.0
	if link.Loss != nil {
		loss = 100 * float64(*link.Loss)
	}
	if link.Delay != nil {
		delay = stats.Milliseconds(link.Delay.Std())
	}
	return append(found,
		report.Coordinate{Axis: "loss", Label: "loss on link " + s.Varied, Unit: "%", Value: loss},
		report.Coordinate{Axis: "delay", Label: "delay of link " + s.Varied, Unit: "ms", Value: delay},
	)
}
