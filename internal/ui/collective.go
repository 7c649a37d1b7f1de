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

// collective prints this host's membership.
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
		next = fmt.Sprintf("renewal failed %s, next attempt in %s%s", times(c.Failures), age(c.RenewAt, now), because(c.Why))
	case !c.RenewAt.After(now):
		next = "being renewed"
	}
	left := "valid for another " + age(c.Until, now)
	if !c.Until.After(now) {
		left = "expired " + age(now, c.Until) + " ago"
	}
	p.linef("  certificate: %s; %s", left, next)
}

func (p *printer) ownRecord(c *api.Collective, now time.Time) {
	r := c.Record
	switch {
	case c.Certificate.Expelled != "":
		p.linef("  record: none, because this host was expelled; ask the operator of the collective")
		return
	case r.Removed != "":
		p.linef("  record: removed from the directory (%s)", r.Removed)
		return
	case r.Published.IsZero():
		p.linef("  record: not published yet%s", because(r.Why))
		return
	}
	at := ""
	if len(r.Addresses) > 0 {
		at = ", at " + joinAddrs(r.Addresses)
		switch {
		case r.Reachable == nil:
		case *r.Reachable && r.Punch:
			at += ", reachable by hole punching"
		case *r.Reachable:
			at += ", reachable for others"
		default:
			at += ", not reachable for others"
		}
	}
	p.linef("  record: published %s ago%s%s", age(now, r.Published), at, because(r.Why))
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

// coordinator prints the state of the coordinator role.
func (p *printer) coordinator(c *api.Coordinator) {
	p.linef("")
	p.linef("Coordinator: %s, %s not used, %d expelled; hosts join at TCP %s", count(c.Members, "member"), count(c.Invitations, "invitation"), c.Expelled, c.Listen)
	if len(c.Unreachable) > 0 {
		p.linef("  not reachable for other members: %s", strings.Join(c.Unreachable, ", "))
	}
	if c.Refused > 0 {
		p.linef("  messages: %d accepted, %d refused because a member sent too many, %s cut off", c.Messages, c.Refused, count(int(c.Floods), "member"))
	}
}

// lastHeard returns the time since the coordinator's last message. It matters because the loss of a coordinator is
// noticed only seconds later.
func lastHeard(now, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return ", last heard " + age(now, at) + " ago"
}
