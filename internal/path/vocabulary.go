package path

import "github.com/detour-collective/dcol/internal/path/policy"

// These types of package policy are used throughout this package and by its callers.
type (
	Kind     = policy.Kind
	Detour   = policy.Detour
	DetourID = policy.DetourID
)

// The kinds of detours.
const (
	WireGuard = policy.WireGuard
	OpenVPN   = policy.OpenVPN
	InBand    = policy.InBand
	Mapped    = policy.Mapped
	Uplink    = policy.Uplink
	Port      = policy.Port
)
