package ui

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// collective says how this host stands as a member.
func (p *printer) collective(c *api.Collective, now time.Time) {
	p.linef("")
	p.linef("Collective %s: %s known%s", c.Name, count(c.Members, "member"), behind(c))
	link := c.Coordinator
	switch {
	case link.Connected:
		p.linef("  coordinator: connected to %s for %s%s", link.Server, age(now, link.Since), lastHeard(now, link.Heard))
	case link.Since.IsZero():
		p.linef("  coordinator: not connected yet%s", because(link.Why))
	default:
		p.linef("  coordinator: not connected for %s%s", age(now, link.Since), because(link.Why))
	}
	p.certificate(c.Certificate, now)
	p.ownRecord(c, now)
	for _, reason := range slices.Sorted(maps.Keys(c.Ignored)) {
		p.linef("  %s ignored: %s", count(int(c.Ignored[reason]), "record"), reason)
	}
}

func (p *printer) certificate(c api.Certificate, now time.Time) {
	next := "renewed in " + age(c.RenewAt, now)
	switch {
	case c.Expelled != "":
		next = "not renewed: " + c.Expelled
	case c.Failures > 0:
		next = fmt.Sprintf("tried in vain to renew it %s, again in %s%s", times(c.Failures), age(c.RenewAt, now), because(c.Why))
	case !c.RenewAt.After(now):
		next = "being renewed"
	}
	left := "for another " + age(c.Until, now)
	if !c.Until.After(now) {
		left = "ended " + age(now, c.Until) + " ago"
	}
	p.linef("  certificate: %s; %s", left, next)
}

func (p *printer) ownRecord(c *api.Collective, now time.Time) {
	r := c.Record
	switch {
	case c.Certificate.Expelled != "":
		p.linef("  what this host offers: nothing any more, as it was expelled; ask whoever runs the collective")
		return
	case r.Removed != "":
		p.linef("  what this host offers: taken out of the directory (%s)", r.Removed)
		return
	case r.Published.IsZero():
		p.linef("  what this host offers is not known to the others yet%s", because(r.Why))
		return
	}
	at := ""
	if len(r.Addresses) > 0 {
		at = ", at " + joinAddrs(r.Addresses)
		switch {
		case r.Reachable == nil:
		case *r.Reachable && r.Punch:
			at += ", where others reach it by hole punching"
		case *r.Reachable:
			at += ", where others reach it"
		default:
			at += ", where others do not reach it"
		}
	}
	p.linef("  what this host offers: told to the others %s ago%s%s", age(now, r.Published), at, because(r.Why))
}

func behind(c *api.Collective) string {
	if !c.Behind {
		return ""
	}
	return ", changes may be missing" + because(c.BehindWhy)
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return " (" + why + ")"
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func joinAddrs(list []netip.Addr) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return strings.Join(words, ", ")
}

// coordinator says what this host does for all.
func (p *printer) coordinator(c *api.Coordinator) {
	p.linef("")
	p.linef("Coordinator: %s, %s not used, %d expelled; hosts join at TCP %s", count(c.Members, "member"), count(c.Invitations, "invitation"), c.Expelled, c.Listen)
	if len(c.Unreachable) > 0 {
		p.linef("  other members cannot reach: %s", strings.Join(c.Unreachable, ", "))
	}
	if c.Refused > 0 {
		p.linef("  messages taken: %d, refused: %d of members that sent too many, %s cut off", c.Messages, c.Refused, count(int(c.Floods), "member"))
	}
}

// lastHeard says since when the far end is silent, which may be gone for some seconds before that is known.
func lastHeard(now, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return ", last heard " + age(now, at) + " ago"
}
