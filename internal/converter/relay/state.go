package relay

import (
	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/engine"
)

// State is all that a relay has to do. It replaces the State before.
type State struct {
	Serve *Serve `json:"serve,omitempty"` // nil: this host is no converter
}

// Empty reports whether there is nothing to do.
func (s State) Empty() bool { return s.Serve == nil }

// Serve is a converter for members.
type Serve struct {
	Port uint16     `json:"port"`
	Key  cookie.Key `json:"key"`
}

// Status is what a relay does now.
type Status struct {
	Version string           `json:"version"`
	PID     int              `json:"pid"`
	Parts   map[string]*Part `json:"parts"` // by the name of the part
}

// Part is one way in which connections come in.
type Part struct {
	Listen   string          `json:"listen"`
	Problem  string          `json:"problem,omitempty"` // why it does not listen
	Counters engine.Counters `json:"counters"`
}

// Names of the parts.
const (
	PartServe = "converter"
)
