package scenario

import (
	"cmp"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

// The defaults, as docs/lab.md documents them.
const (
	DefaultCongestion  = "cubic"
	DefaultRepetitions = 10
	DefaultMTU         = 1500
	DefaultSize        = units.Size(20e6)
	DefaultIperfPort   = 5201
	DefaultHTTPPort    = 80
	defaultDuration    = units.Duration(10 * time.Second)

	// Defaults of streams and requests. The stream resembles a video call: fifty messages a second, each of one packet.
	defaultTrafficPort  = 7007
	defaultStreamRate   = units.Rate(500e3)
	defaultMessageEvery = units.Duration(20 * time.Millisecond)
	defaultAnswer       = units.Size(10e3)
	defaultRequestEvery = units.Duration(100 * time.Millisecond)
)

func (s *Scenario) setDefaults() {
	s.Congestion = cmp.Or(s.Congestion, DefaultCongestion)
	s.Repetitions = cmp.Or(s.Repetitions, DefaultRepetitions)
	s.Seed = cmp.Or(s.Seed, 1)
	for i := range s.Links {
		s.Links[i].Cost = cmp.Or(s.Links[i].Cost, 1)
		s.Links[i].MTU = cmp.Or(s.Links[i].MTU, DefaultMTU)
	}
	for i := range s.Sweeps {
		for j := range s.Sweeps[i].Axes {
			axis := &s.Sweeps[i].Axes[j]
			axis.Name = cmp.Or(axis.Name, axis.Key)
		}
	}
	s.Workload.setDefaults(s)
	for i := range s.Procedures {
		s.Procedures[i].setDefaults(s)
	}
}

func (w *Workload) setDefaults(s *Scenario) {
	w.Kind = cmp.Or(w.Kind, Upload)
	w.Client = cmp.Or(w.Client, only(s.WithRole(RoleClient)))
	w.Server = cmp.Or(w.Server, only(s.WithRole(RoleServer)))
	switch w.Kind {
	case Upload, Download:
		w.Port = cmp.Or(w.Port, DefaultIperfPort)
		w.Duration = cmp.Or(w.Duration, defaultDuration)
	case HTTP:
		w.Port = cmp.Or(w.Port, DefaultHTTPPort)
		w.Size = cmp.Or(w.Size, DefaultSize)
		w.Count = cmp.Or(w.Count, 1)
	case Stream:
		w.Port = cmp.Or(w.Port, defaultTrafficPort)
		w.Duration = cmp.Or(w.Duration, defaultDuration)
		w.Rate = cmp.Or(w.Rate, defaultStreamRate)
		w.Interval = cmp.Or(w.Interval, defaultMessageEvery)
		w.Direction = cmp.Or(w.Direction, Upload)
	case Requests:
		w.Port = cmp.Or(w.Port, defaultTrafficPort)
		w.Duration = cmp.Or(w.Duration, defaultDuration)
		w.Size = cmp.Or(w.Size, defaultAnswer)
		w.Interval = cmp.Or(w.Interval, defaultRequestEvery)
	}
}

func (p *Procedure) setDefaults(s *Scenario) {
	p.Detour = cmp.Or(p.Detour, NoDetour)
	p.Converter = cmp.Or(p.Converter, ConvertNever)
	if p.Detour != NoDetour && len(p.Via) == 0 {
		p.Via = s.WithRole(RoleWaypoint)
	}
	switch {
	case p.Transport != MPTCP || p.Detour == DefaultDetour:
	case p.Detour == NoDetour:
		p.Subflows = cmp.Or(p.Subflows, 1)
	default:
		p.Subflows = cmp.Or(p.Subflows, 2)
	}
}

// only returns the only element, or "" if there is not exactly one.
func only(names []string) string {
	if len(names) != 1 {
		return ""
	}
	return names[0]
}
