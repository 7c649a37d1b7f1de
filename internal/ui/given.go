package ui

import (
	"fmt"
	"io"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
)

// Given writes what a waypoint offers to others, as text.
func Given(w io.Writer, g api.Given) error {
	p := &printer{w: w}
	p.linef("%s", standing(g))
	p.linef("hours: %s", hours(g))
	p.linef("destinations: %s", destinations(g))
	p.linef("bandwidth: %s", bandwidth(g))
	p.linef("quota: %s", quota(g))
	p.givenMembers("", g.Members)
	return p.err
}

// givenMembers describes what members with terms of their own may use, a line for each.
func (p *printer) givenMembers(indent string, list []api.GivenMember) {
	for _, m := range list {
		parts := []string{"may open connections"}
		if !m.Open {
			parts[0] = "may open no connections: " + map[api.ClosedCause]string{api.QuotaTraffic: "this month's quota is used up", api.OutsideHours: "it is outside the hours"}[m.Closed]
			if !m.Until.IsZero() {
				parts[0] += ", until " + m.Until.Local().Format("Mon 2 Jan 15:04")
			}
		}
		for _, limit := range []struct{ name, words string }{
			{"only", join(m.Only)}, {"denied", join(m.Deny)}, {"ports", join(m.Ports)}, {"hours", join(m.Hours)},
		} {
			if limit.words != "" {
				parts = append(parts, limit.name+": "+limit.words)
			}
		}
		if m.QuotaBytes > 0 {
			parts = append(parts, fmt.Sprintf("quota: %s of %s used this month (%.0f %%)", bytes(m.UsedBytes), bytes(m.QuotaBytes), 100*float64(m.UsedBytes)/float64(m.QuotaBytes)))
		}
		p.linef("%smember %s: %s", indent, m.Member, strings.Join(parts, "; "))
	}
}

// limits prints only the limits that are set, as part of a longer status.
func (p *printer) limits(g api.Given) {
	if !g.Open {
		p.linef("  %s", standing(g))
	}
	if len(g.Hours) > 0 {
		p.linef("  hours: %s", hours(g))
	}
	if g.Bandwidth > 0 || g.BandwidthPerMember > 0 {
		p.linef("  bandwidth: %s", bandwidth(g))
	}
	if g.QuotaBytes > 0 {
		p.linef("  quota: %s", quota(g))
	}
	p.givenMembers("  ", g.Members)
}

// standing returns a sentence that says whether the waypoint is open, and why not.
func standing(g api.Given) string {
	if g.Open {
		return "Members may open connections through this waypoint."
	}
	why := string(g.Closed)
	switch g.Closed {
	case api.SwitchedOff:
		why = "it is switched off"
		if g.Until.IsZero() {
			why += " (`dcol waypoint on` opens it)"
		}
	case api.QuotaTraffic:
		why = "this month's quota is used up"
	case api.OutsideHours:
		why = "it is outside its hours"
	}
	if !g.Until.IsZero() {
		why += ", until " + g.Until.Local().Format("Mon 2 Jan 15:04")
	}
	return "Members may open no connections through this waypoint: " + why + "."
}

func hours(g api.Given) string {
	if len(g.Hours) == 0 {
		return "always"
	}
	return strings.Join(g.Hours, ", ")
}

// destinations describes the operator's lists; docs/security.md explains them.
func destinations(g api.Given) string {
	text := "public addresses"
	for _, list := range []struct {
		name  string
		words string
	}{
		{"allowed", join(g.Allow)},
		{"denied", join(g.Deny)},
		{"denied ports", join(g.DenyPorts)},
	} {
		if list.words != "" {
			text += "; " + list.name + ": " + list.words
		}
	}
	return text
}

func join[T any](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = fmt.Sprint(v)
	}
	return strings.Join(words, ", ")
}

func quota(g api.Given) string {
	if g.QuotaBytes == 0 {
		return "none"
	}
	return fmt.Sprintf("%s of %s used this month (%.0f %%), renews on %s", bytes(g.UsedBytes), bytes(g.QuotaBytes),
		100*float64(g.UsedBytes)/float64(g.QuotaBytes), g.Renews.Local().Format("2 Jan 15:04"))
}

func bandwidth(g api.Given) string {
	var parts []string
	if g.Bandwidth > 0 {
		parts = append(parts, fmt.Sprintf("%s in each direction", rate(float64(g.Bandwidth))))
	}
	if g.BandwidthPerMember > 0 {
		parts = append(parts, fmt.Sprintf("%s for each member", rate(float64(g.BandwidthPerMember))))
	}
	if len(parts) == 0 {
		return "unlimited"
	}
	return strings.Join(parts, ", ")
}
