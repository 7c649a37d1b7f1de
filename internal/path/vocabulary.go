package path

import "github.com/detour-collective/dcol/internal/path/policy"

// The words that the policies and all others share.
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
