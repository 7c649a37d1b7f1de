package report

import "html/template"

// Reference is what others published about the networks of a suite, to stand beside
// what was measured. lab/papers has one.
type Reference interface {
	// Throughput returns what a procedure carried; false if that was not published.
	Throughput(s Setting, procedure string) (Throughput, bool)
	// Split returns how a procedure's bytes were split between two paths.
	Split(s Setting, procedure string) (Split, bool)
	// Goals are what a repetition is to show.
	Goals() []Goal
	// Notes are what is known about where a repetition differs, and why.
	Notes() template.HTML
}

// Setting is a network, and the conditions of the link that is varied in it.
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

// Goal is what a procedure is to carry in a setting, or what it may cost there, as a
// part of what others carry there together.
type Goal struct {
	Setting
	What      string   `toml:"what"`
	Procedure string   `toml:"procedure"`
	Of        []string `toml:"of"`
	Cost      bool     `toml:"cost"` // the part that is missing is what counts
	// LimitPct is the least, or of a cost the most, in per cent; 0 is what MPTCP's
	// headers leave, within the spread of the runs.
	LimitPct float64 `toml:"limit_pct"`
}
