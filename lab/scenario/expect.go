package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"

	"github.com/detour-collective/dcol/lab/stats"
)

// Expectation is a sentence about the results that must hold, and the expression that decides it.
type Expectation struct {
	Description string `toml:"description"`
	That        string `toml:"that"`
	// Variants are the variants that the expectation is about. If empty, it is about all that were run.
	Variants []string `toml:"variants"`
}

// Measurements has the results that an expectation is about, with one value for each valid run.
type Measurements interface {
	Goodput(variant, procedure string) []float64       // Mbit/s
	Share(variant, procedure, path string) []float64   // of the bytes, 0..1
	Stall(variant, procedure string) []float64         // longest in the run, ms
	Retransmitted(variant, procedure string) []float64 // segments
	Completion(variant, procedure string) []float64    // seconds
	// LatencyMS returns a percentile of the latencies within each run. It omits runs whose workload has no latencies.
	LatencyMS(variant, procedure string, pct Percentile) []float64
}

// Verdict is the result of an expectation. Left and Right are the sides of its last comparison, if it ends in
// one.
type Verdict struct {
	Met         bool
	Left, Right *float64
	// Err explains why the expectation could not be evaluated. It then counts as not met.
	Err error
}

// statistic is a function of the expression language. Its first argument names a procedure. If pathed, the second names
// a path. An additional last argument names a variant, in place of the one that the expectation is about.
type statistic struct {
	name   string
	pathed bool
	sample func(m Measurements, variant, procedure, path string) []float64
	of     func([]float64) float64
}

// variantAt returns the index of the argument that names a variant.
func (s statistic) variantAt() int {
	if s.pathed {
		return 2
	}
	return 1
}

func goodput(m Measurements, variant, procedure, _ string) []float64 {
	return m.Goodput(variant, procedure)
}

// Percentile is a percentile that an expectation may use.
type Percentile int

// The percentiles of latency.
const (
	P50 Percentile = 50
	P90 Percentile = 90
	P95 Percentile = 95
	P99 Percentile = 99
)

// latencyPrefix begins the names of the functions about latency.
const latencyPrefix = "latency_"

func latency(pct Percentile) func(Measurements, string, string, string) []float64 {
	return func(m Measurements, variant, procedure, _ string) []float64 {
		return m.LatencyMS(variant, procedure, pct)
	}
}

func summary(pick func(stats.Summary) float64) func([]float64) float64 {
	return func(v []float64) float64 { return pick(stats.Summarize(v)) }
}

// statistics are the functions that an expectation may call, in the order of the documentation.
var statistics = []statistic{
	{"median", false, goodput, stats.Median},
	{"mean", false, goodput, stats.Mean},
	{"sd", false, goodput, stats.SD},
	{"min", false, goodput, summary(func(s stats.Summary) float64 { return s.Min })},
	{"max", false, goodput, summary(func(s stats.Summary) float64 { return s.Max })},
	{"q1", false, goodput, summary(func(s stats.Summary) float64 { return s.Q1 })},
	{"q3", false, goodput, summary(func(s stats.Summary) float64 { return s.Q3 })},
	{"share", true, func(m Measurements, v, p, path string) []float64 { return m.Share(v, p, path) }, stats.Median},
	{"stall", false, func(m Measurements, v, p, _ string) []float64 { return m.Stall(v, p) },
		summary(func(s stats.Summary) float64 { return s.Max })},
	{"retransmitted", false, func(m Measurements, v, p, _ string) []float64 { return m.Retransmitted(v, p) }, stats.Median},
	{"completion", false, func(m Measurements, v, p, _ string) []float64 { return m.Completion(v, p) }, stats.Median},
	{latencyPrefix + "p50", false, latency(P50), stats.Median},
	{latencyPrefix + "p90", false, latency(P90), stats.Median},
	{latencyPrefix + "p95", false, latency(P95), stats.Median},
	{latencyPrefix + "p99", false, latency(P99), stats.Median},
}

// Functions lists the names of the functions that an expectation may call.
func Functions() []string {
	names := make([]string, len(statistics))
	for i, s := range statistics {
		names[i] = s.name
	}
	return names
}

// Evaluate decides the expectation on the measurements of a variant.
func (e Expectation) Evaluate(m Measurements, variant string) Verdict {
	v := Verdict{}
	result, err := evaluate(e.That, m, variant)
	if err != nil {
		v.Err = err
		return v
	}
	v.Met, _ = result.(bool)
	if left, right, ok := comparison(e.That); ok {
		v.Left, v.Right = side(left, m, variant), side(right, m, variant)
	}
	return v
}

// side returns the value of one side of a comparison, if it is a number.
func side(expression string, m Measurements, variant string) *float64 {
	value, err := evaluate(expression, m, variant)
	if err != nil {
		return nil
	}
	switch x := value.(type) {
	case float64:
		return &x
	case int:
		f := float64(x)
		return &f
	}
	return nil
}

func evaluate(expression string, m Measurements, variant string) (any, error) {
	program, err := compile(expression, m, variant)
	if err != nil {
		return nil, err
	}
	value, err := expr.Run(program, nil)
	// Drop the place in the expression that the language adds: the expression is correct.
	if none := (*noRunsError)(nil); errors.As(err, &none) {
		return nil, none
	}
	return value, err
}

// noRunsError reports a statistic of a procedure that has no runs.
type noRunsError struct{ procedure, variant string }

func (e *noRunsError) Error() string {
	return fmt.Sprintf("there is no valid run of %q in variant %q", e.procedure, e.variant)
}

// compile builds the expression with its functions bound to measurements. They replace the language's own functions of
// the same names, such as median and mean.
func compile(expression string, m Measurements, variant string, more ...expr.Option) (*vm.Program, error) {
	options := append([]expr.Option{expr.Env(struct{}{}), expr.DisableAllBuiltins(), expr.Optimize(false)}, more...)
	for _, s := range statistics {
		signatures := []any{new(func(string) float64), new(func(string, string) float64)}
		if s.pathed {
			signatures = []any{new(func(string, string) float64), new(func(string, string, string) float64)}
		}
		options = append(options, expr.Function(s.name, func(args ...any) (any, error) {
			procedure, path, of := args[0].(string), "", variant
			if s.pathed {
				path = args[1].(string)
			}
			if at := s.variantAt(); len(args) > at {
				of = args[at].(string)
			}
			sample := s.sample(m, of, procedure, path)
			if len(sample) == 0 {
				return nil, &noRunsError{procedure, of}
			}
			return s.of(sample), nil
		}, signatures...))
	}
	return expr.Compile(expression, options...)
}

// comparison splits an expression whose outermost operator is a comparison.
func comparison(expression string) (left, right string, ok bool) {
	tree, err := parser.Parse(expression)
	if err != nil {
		return "", "", false
	}
	root, ok := tree.Node.(*ast.BinaryNode)
	if !ok || !strings.Contains(" < <= > >= == != ", " "+root.Operator+" ") {
		return "", "", false
	}
	return root.Left.String(), root.Right.String(), true
}

// calls finds the function calls in an expression, with their literal arguments, so that an unknown procedure is found
// when the file is read.
func calls(expression string) ([]call, error) {
	program, err := compile(expression, nil, "", expr.AsBool())
	if err != nil {
		return nil, err
	}
	found := &callFinder{}
	node := program.Node()
	ast.Walk(&node, found)
	return found.calls, nil
}

type call struct {
	function string
	names    []string // "" where the argument is not a literal
}

// variant returns the variant that a call names, or "" if it names none.
func (c call) variant() string {
	for _, s := range statistics {
		if at := s.variantAt(); s.name == c.function && len(c.names) > at {
			return c.names[at]
		}
	}
	return ""
}

type callFinder struct{ calls []call }

// Visit implements ast.Visitor.
func (f *callFinder) Visit(node *ast.Node) {
	n, ok := (*node).(*ast.CallNode)
	if !ok {
		return
	}
	c := call{function: n.Callee.String()}
	for _, a := range n.Arguments {
		literal, _ := a.(*ast.StringNode)
		if literal == nil {
			c.names = append(c.names, "")
			continue
		}
		c.names = append(c.names, literal.Value)
	}
	f.calls = append(f.calls, c)
}

// About reports whether the expectation is about the variant, and uses only these procedures and variants. It cannot be
// decided if it uses others, because they did not run.
func (e Expectation) About(variant string, procedures, variants []string) bool {
	if len(e.Variants) > 0 && !slices.Contains(e.Variants, variant) {
		return false
	}
	found, _ := calls(e.That) // it was parsed before
	return !slices.ContainsFunc(found, func(c call) bool {
		other := c.variant()
		return len(c.names) > 0 && c.names[0] != "" && !slices.Contains(procedures, c.names[0]) ||
			other != "" && !slices.Contains(variants, other)
	})
}
