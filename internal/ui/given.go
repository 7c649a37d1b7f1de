package ui

import (
	"fmt"
	"io"
	"strings"
	"time"

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

// givenMembers writes what members with terms of their own may use, one line for each member.
func (p *printer) givenMembers(indent string, members []api.GivenMember) {
	for _, m := range members {
		parts := []string{"may open connections"}
		if !m.Open {
			why := quotaUsedUp
			if m.Closed == api.OutsideHours {
				why = "it is outside the hours"
			}
			parts[0] = "may open no connections: " + why + untilDay(m.Until)
		}
		parts = append(parts, named([]list{
			{"only", join(m.Only)}, {"denied", join(m.Deny)}, {"ports", join(m.Ports)}, {"hours", join(m.Hours)},
		})...)
		if m.QuotaBytes > 0 {
			parts = append(parts, "quota: "+usedOf(m.UsedBytes, m.QuotaBytes))
		}
		p.linef("%smember %s: %s", indent, m.Member, strings.Join(parts, "; "))
	}
}

// limits writes the limits that are set, as part of a longer status.
func (p *printer) limits(g api.Given) {
	if !g.Open {
		p.linef("  %s", standing(g))
	}
	p.terms("  ", g)
}

// terms writes the limits that are set, except whether the waypoint is open.
func (p *printer) terms(indent string, g api.Given) {
	if len(g.Hours) > 0 {
		p.linef("%shours: %s", indent, hours(g))
	}
	if g.Bandwidth > 0 || g.BandwidthPerMember > 0 {
		p.linef("%sbandwidth: %s", indent, bandwidth(g))
	}
	if g.QuotaBytes > 0 {
		p.linef("%squota: %s", indent, quota(g))
	}
	p.givenMembers(indent, g.Members)
}

// standing returns a sentence that says whether the waypoint is open and, if not, why.
func standing(g api.Given) string {
	if g.Open {
		return "Members may open connections through this waypoint."
	}
	return "Members may open no connections through this waypoint: " + whyClosed(g) + "."
}

// whyClosed returns the reason why a waypoint is closed, and until when, if that is known.
func whyClosed(g api.Given) string {
	why := string(g.Closed)
	switch g.Closed {
	case api.SwitchedOff:
		why = "it is switched off"
		if g.Until.IsZero() {
			why += " (`dcol waypoint on` opens it)"
		}
	case api.QuotaTraffic:
		why = quotaUsedUp
	case api.OutsideHours:
		why = "it is outside its hours"
	}
	return why + untilDay(g.Until)
}

const quotaUsedUp = "this month's quota is used up"

// untilDay returns words for the end of a state, or nothing if it is not known.
func untilDay(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ", until " + t.Local().Format("Mon 2 Jan 15:04")
}

func hours(g api.Given) string {
	if len(g.Hours) == 0 {
		return "always"
	}
	return strings.Join(g.Hours, ", ")
}

// destinations returns words for the operator's lists of destinations; docs/security.md explains them.
func destinations(g api.Given) string {
	return strings.Join(append([]string{"public addresses"}, named([]list{
		{"allowed", join(g.Allow)}, {"denied", join(g.Deny)}, {"denied ports", join(g.DenyPorts)},
	})...), "; ")
}

// list is a list of the operator's with its name. words is empty if the list is.
type list struct{ name, words string }

// named returns the lists that are not empty, with their names before them.
func named(lists []list) (parts []string) {
	for _, l := range lists {
		if l.words != "" {
			parts = append(parts, l.name+": "+l.words)
		}
	}
	return parts
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
	return usedOf(g.UsedBytes, g.QuotaBytes) + ", renews on " + g.Renews.Local().Format("2 Jan 15:04")
}

// usedOf returns how much of a quota is used, both in bytes.
func usedOf(used, quota uint64) string {
	return fmt.Sprintf("%s of %s used this month (%.0f %%)", bytes(used), bytes(quota), 100*float64(used)/float64(quota))
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
