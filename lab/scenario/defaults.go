package scenario

import (
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

// The defaults, as docs/lab.md has them.
const (
	DefaultCongestion  = "cubic"
	DefaultRepetitions = 10
	DefaultMTU         = 1500
	DefaultSize        = units.Size(20e6)
	DefaultIperfPort   = 5201
	DefaultHTTPPort    = 80
	defaultDuration    = units.Duration(10 * time.Second)

	// Of streams and requests. The stream is about a video call's: fifty messages a
	// second, each of one packet.
	defaultTrafficPort  = 7007
	defaultStreamRate   = units.Rate(500e3)
	defaultMessageEvery = units.Duration(20 * time.Millisecond)
	defaultAnswer       = units.Size(10e3)
	defaultRequestEvery = units.Duration(100 * time.Millisecond)
)

func (s *Scenario) setDefaults() {
	s.Congestion = or(s.Congestion, DefaultCongestion)
	s.Repetitions = or(s.Repetitions, DefaultRepetitions)
	s.Seed = or(s.Seed, 1)
	for i := range s.Links {
		s.Links[i].Cost = or(s.Links[i].Cost, 1)
		s.Links[i].MTU = or(s.Links[i].MTU, DefaultMTU)
	}
	for i := range s.Sweeps {
		for j := range s.Sweeps[i].Axes {
			axis := &s.Sweeps[i].Axes[j]
			axis.Name = or(axis.Name, axis.Key)
		}
	}
	s.Workload.setDefaults(s)
	for i := range s.Procedures {
		s.Procedures[i].setDefaults(s)
	}
}

func (w *Workload) setDefaults(s *Scenario) {
	w.Kind = or(w.Kind, Upload)
	w.Client = or(w.Client, only(s.WithRole(RoleClient)))
	w.Server = or(w.Server, only(s.WithRole(RoleServer)))
	switch w.Kind {
	case Upload, Download:
		w.Port = or(w.Port, DefaultIperfPort)
		w.Duration = or(w.Duration, defaultDuration)
	case HTTP:
		w.Port = or(w.Port, DefaultHTTPPort)
		w.Size = or(w.Size, DefaultSize)
		w.Count = or(w.Count, 1)
	case Stream:
		w.Port = or(w.Port, defaultTrafficPort)
		w.Duration = or(w.Duration, defaultDuration)
		w.Rate = or(w.Rate, defaultStreamRate)
		w.Interval = or(w.Interval, defaultMessageEvery)
		w.Direction = or(w.Direction, Upload)
	case Requests:
		w.Port = or(w.Port, defaultTrafficPort)
		w.Duration = or(w.Duration, defaultDuration)
		w.Size = or(w.Size, defaultAnswer)
		w.Interval = or(w.Interval, defaultRequestEvery)
	}
}

func (p *Procedure) setDefaults(s *Scenario) {
	p.Detour = or(p.Detour, NoDetour)
	if p.Detour != NoDetour && len(p.Via) == 0 {
		p.Via = s.WithRole(RoleWaypoint)
	}
	switch {
	case p.Transport != MPTCP || p.Detour == DefaultDetour:
	case p.Detour == NoDetour:
		p.Subflows = or(p.Subflows, 1)
	default:
		p.Subflows = or(p.Subflows, 2)
	}
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// only returns the sole element, or "" if there are several.
func only(names []string) string {
	if len(names) != 1 {
		return ""
	}
	return names[0]
}
