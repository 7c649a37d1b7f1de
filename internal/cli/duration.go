package cli

import "github.com/detour-collective/dcol/internal/units"

// Duration is a flag that takes spans as dcol's files have them.
type Duration struct{ *units.Duration }

func (d Duration) Set(text string) error { return d.UnmarshalText([]byte(text)) }
func (Duration) Type() string            { return "duration" }
