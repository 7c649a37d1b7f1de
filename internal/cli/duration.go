package cli

import "github.com/detour-collective/dcol/internal/units"

// Duration is a flag that takes spans as dcol's files have them.
type Duration struct{ *units.Duration }

// Set reads a span such as 90m or 24h.
func (d Duration) Set(text string) error { return d.UnmarshalText([]byte(text)) }

// Type returns the word that help shows for the value.
func (Duration) Type() string { return "duration" }
