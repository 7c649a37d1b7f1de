package cli

import "github.com/detour-collective/dcol/internal/units"

// Duration is a flag value with the syntax of durations in dcol's files.
type Duration struct{ *units.Duration }

// Set parses a duration such as 90m or 24h.
func (d Duration) Set(text string) error { return d.UnmarshalText([]byte(text)) }

// Type returns the word for the value in help texts.
func (Duration) Type() string { return "duration" }
