package ui

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/detour-collective/dcol/internal/api"
)

// Converting writes the use of converters as text.
func Converting(w io.Writer, c api.Converting) error {
	p := &printer{w: w}
	p.converting(c)
	p.excluded(c)
	return p.err
}

// excluded lists the addresses to which connections go directly because of excluded domains.
func (p *printer) excluded(c api.Converting) {
	if len(c.Excluded) == 0 {
		return
	}
	p.linef("")
	p.linef("Addresses excluded by their names (exclude_domains)")
	var rows [][]string
	for _, x := range c.Excluded {
		rows = append(rows, []string{x.Name, x.Addr.String(), x.Until.Local().Format("15:04:05")})
	}
	p.table("NAME|ADDRESS|UNTIL", rows)
	if more := c.ExcludedAll - len(c.Excluded); more > 0 {
		p.linef("  and %d more", more)
	}
}

func usesConverters(c api.Converting) bool { return c.Use == "auto" || c.Use == "always" }

// converting describes the use of converters.
func (p *printer) converting(c api.Converting) {
	if !usesConverters(c) {
		p.linef("Converters are not used.")
		return
	}
	which := map[string]string{"auto": "servers that are known to speak no MPTCP", "always": "all servers but those known to speak MPTCP"}[c.Use]
	var known []string
	for _, x := range c.Converters {
		rtt := ""
		if x.RTT > 0 {
			rtt = fmt.Sprintf(", %.1f ms", x.RTT)
		}
		detours := ""
		switch {
		case x.Excluded:
			detours = "; no detours to it, because its address is in client.exclude"
		case x.BehindNAT:
			detours = "; no detours to it, because it is behind a NAT"
		}
		known = append(known, fmt.Sprintf("%s (%v%s%s%s)", x.Name, x.Addr, rtt, detours, aside(x)))
	}
	for _, r := range c.Refused {
		known = append(known, fmt.Sprintf("not %s, which this host cannot use (%s)", r.Name, r.Why))
	}
	switch {
	case len(known) > 0:
	case len(c.Offered) > 0:
		known = []string{"none yet: the converter of " + strings.Join(c.Offered, " or ") + " is not ready"}
	default:
		known = []string{"none: no waypoint in use offers one"}
	}
	p.linef("Converters for %s (%s): %s", which, c.Use, strings.Join(known, ", "))
}

// aside describes until when a converter is not used, and why.
func aside(x api.Converter) string {
	if x.AsideUntil.IsZero() {
		return ""
	}
	why := "it does not work"
	if x.Refuses {
		why = "connections through it failed to several servers in a row"
	}
	return fmt.Sprintf("; not used until %s, because %s", x.AsideUntil.Local().Format("15:04:05"), why)
}

// incoming describes for which services of this host converters take connections.
func (p *printer) incoming(list []api.Incoming) {
	if len(list) == 0 {
		return
	}
	p.linef("")
	p.linef("Services of this host at converters")
	var rows [][]string
	for _, x := range list {
		at, state := fmt.Sprintf("port %d", x.Port), "yes"
		if x.Addr.IsValid() {
			at = netip.AddrPortFrom(x.Addr, x.Port).String()
		}
		if !x.Granted {
			state = "no: " + x.Why
		}
		rows = append(rows, []string{x.Converter, at, x.To.String(), state})
	}
	p.table("CONVERTER|AT|LEADS TO|TAKEN", rows)
}

// relay describes the process that relays converted connections.
func (p *printer) relay(r *api.Relay) {
	p.linef("")
	p.linef("Relay of converted connections: process %d, dcol %s", r.PID, r.Version)
	var rows [][]string
	for _, part := range r.Parts {
		rows = append(rows, []string{part.Name, part.Listen, fmt.Sprint(part.Open), fmt.Sprint(part.Accepted), fmt.Sprint(part.Refused),
			bytes(uint64(part.Bytes)), part.Problem})
	}
	p.table("FOR|LISTENS AT|OPEN|ACCEPTED|REFUSED|CARRIED|PROBLEM", rows)
}

// ready lists the kinds of detours that are ready.
func ready(w api.Waypoint) string {
	var kinds []string
	for _, k := range w.Kinds {
		if k.State == api.KindReady {
			kinds = append(kinds, k.Kind)
		}
	}
	if len(kinds) == 0 {
		return "-"
	}
	return strings.Join(kinds, ", ")
}

// converterWanted writes how a converter could carry plain connections over several paths. If waypoints in use offer
// one, it writes the command that uses them.
func (p *printer) converterWanted(offered []string, isMember bool) {
	const nobody = "  A converter could carry them over several paths, but no waypoint in use offers one"
	switch {
	case len(offered) > 0:
		p.linef("  The converter of %s could carry them over several paths: `dcol convert auto`. It sees what it carries; TLS stays encrypted.", strings.Join(offered, " or "))
	case isMember:
		p.linef("%s. `dcol members` shows which members offer one. With `dcol convert auto` and a restart of the agent, this host chooses such a waypoint.", nobody)
	default:
		p.linef("%s: ask its operator to add \"converter\" to waypoint.offers.", nobody)
	}
}
