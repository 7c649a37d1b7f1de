package report

import "html/template"

// Reference has published numbers about the networks of a suite, to compare the measurements
// with. lab/papers has one.
type Reference interface {
	// Throughput returns the published goodput of a procedure. ok is false if there is none.
	Throughput(s Setting, procedure string) (Throughput, bool)
	// Split returns how a procedure's bytes were split between two paths.
	Split(s Setting, procedure string) (Split, bool)
	// Goals returns the targets of a repetition.
	Goals() []Goal
	// Why returns the known reason why a procedure, under the published congestion control, carries more or less than the
	// published figure. It returns "" if none is known.
	Why(s Setting, procedure string, more bool) string
	// Notes returns the known differences of a repetition, with their causes.
	Notes() template.HTML
}

// Setting is a network with the conditions of its varied link.
type Setting struct {
	Network string  `toml:"network"`
	LossPct float64 `toml:"loss_pct"` // per cent of packets
	DelayMS float64 `toml:"delay_ms"` // one way
}

// Throughput is a published goodput.
type Throughput struct {
	MeanMbps   float64 `toml:"mean_mbps"`
	SDMbps     float64 `toml:"sd_mbps"`
	Trials     int     `toml:"trials"`
	Congestion string  `toml:"congestion"` // the congestion control it was measured with
}

// Split is the bytes of one published trial by path.
type Split struct {
	DirectBytes int64 `toml:"direct_bytes"`
	DetourBytes int64 `toml:"detour_bytes"`
}

// Goal is a target for a procedure in a setting: the share that it carries of the sum of others, or the
// share of that sum that it may lose.
type Goal struct {
	Setting
	What      string   `toml:"what"`
	Procedure string   `toml:"procedure"`
	Of        []string `toml:"of"`
	Cost      bool     `toml:"cost"` // the target limits the missing share
	// LimitPct is the least share, or for a cost the largest, in per cent. 0 stands for the
	// share that MPTCP's headers leave, within the spread of the runs.
	LimitPct float64 `toml:"limit_pct"`
}
