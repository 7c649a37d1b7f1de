package ui

import "github.com/detour-collective/dcol/internal/api"

// budgets writes how much of the month's budgets for detours is used.
func (p *printer) budgets(list []api.Budget) {
	for _, b := range list {
		what := map[string]string{"total": "Detours", "waypoint": "Detours via " + b.Waypoint, "metered": "Detours from metered interfaces"}[b.Scope]
		then := map[string]string{
			"nearly": "; other waypoints are taken first, and when it is used up, none of these detours is taken",
			"spent":  "; none of these detours carries data until then",
		}[b.Level]
		if b.Level == "nearly" && b.Scope != "waypoint" {
			then = "; when it is used up, none of these detours is taken"
		}
		p.linef("%s: %s of %s used this month (%.0f %%), renews on %s%s", what, bytes(b.Used), bytes(b.Limit),
			100*float64(b.Used)/float64(max(b.Limit, 1)), b.Renews.Local().Format("2 Jan 15:04"), then)
	}
}

// exploring writes what trying paths has cost in the current hour, if anything was tried.
func (p *printer) exploring(e api.Exploring) {
	if e.Tries == 0 {
		return
	}
	spent := ""
	if e.Tries >= e.MostTries || e.Bytes >= e.MostBytes {
		spent = "; nothing more is tried"
	}
	p.linef("Paths tried to measure them, in the hour until %s: %d of at most %d, with %s of at most %s%s", e.Renews.Local().Format("15:04"), e.Tries, e.MostTries,
		bytes(e.Bytes), bytes(e.MostBytes), spent)
}

// sampling writes how many connections are measured, if not all are.
func (p *printer) sampling(s *api.Sampling) {
	if s != nil {
		p.linef("Measuring %d of %d active connections, to save processor time; those with messages come first, the others take turns", s.Measured, s.Active)
	}
}
