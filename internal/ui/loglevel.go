package ui

import (
	"io"
	"maps"
	"slices"

	"github.com/detour-collective/dcol/internal/api"
)

// LogLevels writes as text which messages the agent logs.
func LogLevels(w io.Writer, l api.LogLevels) error {
	p := &printer{w: w}
	p.linef("%s", l.All)
	for _, name := range slices.Sorted(maps.Keys(l.Subsystems)) {
		if level := l.Subsystems[name]; level != l.All {
			p.linef("%s=%s", name, level)
		}
	}
	return p.err
}
