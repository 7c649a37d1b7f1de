package ui

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// Members writes the collective's members as text, expelled ones last. On a terminal, it folds long lines.
func Members(w io.Writer, all api.Members, now time.Time) error {
	return (&printer{w: w, columns: columnsOf(w)}).members(&all, now)
}

func (p *printer) members(all *api.Members, now time.Time) error {
	var rows [][]string
	var expelled []api.Member
	for _, m := range all.Members {
		if !m.Expelled.IsZero() {
			expelled = append(expelled, m)
			continue
		}
		rows = append(rows, memberRow(m, m.Name == all.Self, now))
	}
	missing := ""
	if all.Behind {
		missing = "; changes may be missing: no coordinator has confirmed that the list is complete"
	}
	p.linef("%s: %s%s", all.Collective, count(len(rows), "member"), missing)
	p.filled([]string{"NAME", "ROLES", "DETOURS", "ADDRESSES", "REGION", "CAPACITY", "REACHABLE", "CERTIFICATE", "LAST HEARD"}, rows)
	for _, m := range all.Members {
		if m.Enforces != nil && !*m.Enforces && m.Expelled.IsZero() {
			p.linef("  %s has not confirmed yet that it refuses all expelled members", m.Name)
		}
	}
	for _, m := range expelled {
		p.linef("  %s was expelled on %s: %s", m.Name, m.Expelled.Local().Format(time.DateOnly), m.Why)
	}
	return p.err
}

// Expelled writes the result of an expulsion that took the given time.
func Expelled(w io.Writer, e api.Expulsion, took time.Duration) error {
	p := &printer{w: w}
	if e.Pending != "" {
		p.linef("%s is expelled and gets no new certificate. Not all members could be notified yet; the agent keeps trying:", e.Member)
		p.linef("%s", e.Pending)
		return p.err
	}
	p.linef("%s is expelled: its certificates are revoked, and all connected members were notified.", e.Member)
	way := e.Waypoints
	if way == nil || way.Of == 0 {
		return p.err
	}
	switch reach := way.Of - len(way.Away); {
	case reach == 0:
	case way.Confirmed == reach && reach == 1:
		p.linef("The one connected waypoint confirmed within %v that it refuses the member.", took.Round(10*time.Millisecond))
	case way.Confirmed == reach:
		p.linef("All %s confirmed within %v that they refuse it.", count(reach, "connected waypoint"), took.Round(10*time.Millisecond))
	default:
		p.linef("%d of %s confirmed within %v that they refuse it. Not yet: %s.", way.Confirmed, count(reach, "connected waypoint"), took.Round(10*time.Millisecond), some(way.Waiting))
		p.linef("They were notified too. To see who has confirmed since, run this command again, or dcol members.")
	}
	if len(way.Away) > 0 {
		p.linef("Not connected, and will refuse it when they reconnect: %s.", some(way.Away))
	}
	return p.err
}

// some returns the first ten names, and how many others there are.
func some(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// filled prints a table without its empty columns.
func (p *printer) filled(header []string, rows [][]string) {
	var names []string
	some := make([][]string, len(rows))
	for col, name := range header {
		if !slices.ContainsFunc(rows, func(row []string) bool { return row[col] != "" }) {
			continue
		}
		names = append(names, name)
		for i, row := range rows {
			some[i] = append(some[i], cmp.Or(row[col], "-"))
		}
	}
	p.table(strings.Join(names, "|"), some)
}

func memberRow(m api.Member, self bool, now time.Time) []string {
	name := m.Name
	switch {
	case self:
		name += " (this host)"
	case m.Used:
		name += " (used)"
	}
	gives, certificate, word := "", "", "never"
	if m.Capacity > 0 {
		gives = rate(float64(m.Capacity))
	}
	switch {
	case m.CertificateUntil.IsZero():
	case m.CertificateUntil.After(now):
		certificate = "for " + age(m.CertificateUntil, now)
	default:
		certificate = "expired " + age(now, m.CertificateUntil) + " ago"
	}
	if !m.RecordIssued.IsZero() {
		word = age(now, m.RecordIssued) + " ago"
	}
	return []string{
		name, strings.Join(m.Roles, ", "), strings.Join(m.Kinds, ", "), joinAddrs(m.Addresses), m.Region, gives, memberReachable(m), certificate, word,
	}
}

func memberReachable(m api.Member) string {
	punching := ""
	if m.Punch {
		punching = ", by hole punching"
	}
	switch {
	case m.Reach != nil && m.Reach.Yes == 0:
		return fmt.Sprintf("no, for none of %d", m.Reach.Of)
	case m.Reach != nil:
		return fmt.Sprintf("by %d of %d%s", m.Reach.Yes, m.Reach.Of, punching)
	case m.Reachable == nil:
		return ""
	case *m.Reachable:
		return "yes" + punching
	}
	return "no"
}
