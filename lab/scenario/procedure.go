package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/internal/units"
)

// Transport selects the protocol of the workload's sockets.
type Transport string

// The transports.
const (
	TCP   Transport = "tcp"
	MPTCP Transport = "mptcp"
)

// Detour selects how waypoints are used: not at all, or by one kind of detour.
type Detour string

// The uses of waypoints. With TCP, the whole connection goes through the waypoint. With MPTCP, additional subflows do.
const (
	NoDetour  Detour = "none"
	Mapped    Detour = "mapped"
	InBand    Detour = "in-band"
	WireGuard Detour = "wireguard"
	OpenVPN   Detour = "openvpn"
	// DefaultDetour leaves the kinds to the agents' defaults.
	DefaultDetour Detour = "default"
)

// Kinds returns all kinds of detours.
func Kinds() []Detour { return []Detour{Mapped, InBand, WireGuard, OpenVPN} }

// IsTunnel reports whether the detour is an interface of the client, which a socket uses if it is bound to the
// interface's address.
func (d Detour) IsTunnel() bool { return d == WireGuard || d == OpenVPN }

// Convert selects for which servers the client uses converters.
type Convert string

// The settings for converters, as in an agent's configuration.
const (
	ConvertNever  Convert = "never"
	ConvertAuto   Convert = "auto"   // for servers known not to speak MPTCP
	ConvertAlways Convert = "always" // for all servers except those known to speak MPTCP
)

// Proxy selects the protocol in which the client's program asks its agent's proxy for a connection.
type Proxy string

// The protocols.
const (
	SOCKS5    Proxy = "socks5"
	HTTPProxy Proxy = "http" // CONNECT
)

// Procedure is one way to carry the workload.
type Procedure struct {
	Name        string    `toml:"name"`
	Description string    `toml:"description"`
	Transport   Transport `toml:"transport"`
	Detour      Detour    `toml:"detour"`
	// Via are the waypoints in use. If empty, all are.
	Via []string `toml:"via"`
	// Subflows is the number of subflows. 0 with DefaultDetour means the agents' own default.
	Subflows  int     `toml:"subflows"`
	Converter Convert `toml:"converter"`
	// Proxy, unless empty, is used by the client's program instead of dcol run.
	Proxy Proxy `toml:"proxy"`
	// Capture makes the kernel lead the connections of all programs on the client's host to its agent. It replaces dcol
	// run.
	Capture bool `toml:"capture"`
	// WarmUp is the time for which the workload runs before the run is measured, with the same agents.
	WarmUp units.Duration `toml:"warm_up"`
	// Restart restarts the client's agent after the warm-up, which leaves only what the agent saved.
	Restart bool `toml:"restart"`
	// DCol overrides the configuration of the client's agent, after that of its host.
	DCol map[string]any `toml:"dcol"`
	// Optional procedures run only when selected by name.
	Optional bool `toml:"optional"`
}

// NeedsAgent reports whether the procedure needs an agent on the client.
func (p Procedure) NeedsAgent() bool { return p.Transport == MPTCP || p.Detour != NoDetour }

// Converts reports whether connections may go through a converter.
func (p Procedure) Converts() bool { return p.Converter == ConvertAuto || p.Converter == ConvertAlways }

// RunsPlain reports whether the client's program is started without dcol run, although its agent serves it.
func (p Procedure) RunsPlain() bool { return p.Proxy != "" || p.Capture }

// Procedure returns the procedure with that name.
func (s *Scenario) Procedure(name string) (Procedure, bool) {
	for _, p := range s.Procedures {
		if p.Name == name {
			return p, true
		}
	}
	return Procedure{}, false
}

// ProcedureNames lists all procedures.
func (s *Scenario) ProcedureNames() []string {
	var names []string
	for _, p := range s.Procedures {
		names = append(names, p.Name)
	}
	return names
}

// Select lists the procedures with these names, in the scenario's order. Without names, it lists those that are not
// optional.
func (s *Scenario) Select(names []string) ([]Procedure, error) {
	known := s.ProcedureNames()
	for _, n := range names {
		if n != All && !slices.Contains(known, n) {
			return nil, fmt.Errorf("scenario %s has no procedure %q%s", s.Name, n, tomlfile.Nearest(n, known))
		}
	}
	var chosen []Procedure
	for _, p := range s.Procedures {
		if slices.Contains(names, p.Name) || slices.Contains(names, All) || len(names) == 0 && !p.Optional {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("all procedures of scenario %s are optional; name those to run: %s", s.Name, strings.Join(known, ", "))
	}
	return chosen, nil
}

// KindsOf lists the kinds of detours that procedures use in a variant, without repetitions. An empty list means the
// agents' own kinds.
func KindsOf(procedures []Procedure, v Variant) []Detour {
	var used []Detour
	for _, k := range append(v.Kinds[:len(v.Kinds):len(v.Kinds)], Kinds()...) {
		uses := func(p Procedure) bool {
			return p.Detour == k || p.Detour == DefaultDetour && slices.Contains(v.Kinds, k)
		}
		if !slices.Contains(used, k) && slices.ContainsFunc(procedures, uses) {
			used = append(used, k)
		}
	}
	return used
}

// Kinds lists the kinds that any procedure uses in any variant.
func (s *Scenario) Kinds() []Detour {
	var used []Detour
	for _, name := range s.VariantNames() {
		v, _ := s.Variant(name)
		for _, k := range KindsOf(s.Procedures, v) {
			if !slices.Contains(used, k) {
				used = append(used, k)
			}
		}
	}
	return used
}

// UsesDCol reports whether any procedure needs agents or MPTCP sockets.
func (s *Scenario) UsesDCol() bool { return slices.ContainsFunc(s.Procedures, Procedure.NeedsAgent) }
