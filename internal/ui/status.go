// Package ui prints the agent's answers on a terminal. It knows only the versioned JSON types of
// internal/api.
package ui

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/units"
)

// mostConnections is the number of connections that Status shows.
const mostConnections = 10

// Status writes s as text, with the busiest connections.
func Status(w io.Writer, s api.Status, now time.Time) error {
	return status(&printer{w: w}, s, now)
}

// Details writes s as text, with all connections and all that is known of each path.
func Details(w io.Writer, s api.Status, now time.Time) error {
	return status(&printer{w: w, details: true}, s, now)
}

func status(p *printer, s api.Status, now time.Time) error {
	p.linef("%s (%s), agent running for %s, dcol %s", s.Member, strings.Join(s.Roles, ", "), age(now, s.Since), s.Version)
	for _, problem := range s.Problems {
		p.linef("PROBLEM: %s", problem)
	}
	if s.Coordinator != nil {
		p.coordinator(s.Coordinator)
	}
	if s.Collective != nil {
		p.collective(s.Collective, now)
	}
	if s.Client != nil {
		p.waypoints(s.Client, now)
		p.steering(s.Client.Steering)
		p.budgets(s.Client.Budgets)
		p.exploring(s.Client.Exploring)
		if usesConverters(s.Client.Converting) {
			p.converting(s.Client.Converting)
		}
		p.incoming(s.Client.Converting.Incoming)
		p.connections(s.Client, s.Collective != nil, now)
	}
	if s.Serving != nil {
		p.serving(s.Serving)
	}
	if s.Relay != nil {
		p.relay(s.Relay)
	}
	if s.Router != nil {
		p.router(s.Router)
	}
	return p.err
}

func (p *printer) waypoints(u *api.Using, now time.Time) {
	p.linef("")
	if len(u.Waypoints) == 0 {
		p.linef("No waypoints are known: connections have only their direct path.")
		return
	}
	p.linef("Waypoints")
	var rows [][]string
	for _, w := range u.Waypoints {
		rtt, loss := "-", "-"
		if w.State == api.WaypointUp || w.State == api.WaypointClosed {
			rtt, loss = fmt.Sprintf("%.1f ms", w.RTT), SessionLoss(w)
		}
		mappings := ""
		if p.details {
			mappings = fmt.Sprint(w.Mappings)
		}
		rows = append(rows, []string{
			w.Name, w.Addr.String(), string(w.State) + " " + age(now, w.Since), rtt, loss, fmt.Sprint(w.Subflows), mappings, ready(w),
		})
	}
	p.table("NAME|ADDRESS|STATE|RTT|LOSS|SUBFLOWS|MAPPINGS|READY", rows)
	for _, w := range u.Waypoints {
		p.waypointReasons(waypointName(w, u.Waypoints), w)
	}
}

// waypointName names a waypoint, with its address if it has several.
func waypointName(w api.Waypoint, all []api.Waypoint) string {
	if slices.ContainsFunc(all, func(other api.Waypoint) bool { return other.Name == w.Name && other.Addr != w.Addr }) {
		return fmt.Sprintf("%s at %v", w.Name, w.Addr)
	}
	return w.Name
}

// waypointReasons writes why a waypoint and kinds of detours through it are not used. A kind that can never be used at an
// address is a detail while another is ready there.
func (p *printer) waypointReasons(name string, w api.Waypoint) {
	if w.Why != "" {
		p.linef("  %s: %s", name, w.Why)
	}
	for _, k := range w.Kinds {
		switch {
		case k.State == api.KindNotOffered || k.Why == "":
		case k.State == api.KindUnusable && ready(w) != "-" && !p.details:
		case k.State == api.KindReady:
			p.linef("  %s, %s: %s", name, k.Kind, k.Why)
		default:
			p.linef("  %s, %s is %s: %s", name, k.Kind, k.State, k.Why)
		}
	}
}

// leastLossPackets is the least number of packets of a session in which its loss is shown.
const leastLossPackets = 30

// SessionLoss returns the loss of a waypoint's session as text, "-" if it was seen in too few packets.
func SessionLoss(w api.Waypoint) string {
	if w.LossPackets < leastLossPackets {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*w.Loss)
}

// Converting writes the use of converters as text.
func Converting(w io.Writer, c api.Converting) error {
	p := &printer{w: w}
	p.converting(c)
	return p.err
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
		known = append(known, fmt.Sprintf("%s (%v%s%s)", x.Name, x.Addr, rtt, detours))
	}
	for _, r := range c.Refused {
		known = append(known, fmt.Sprintf("not %s, which this host cannot use (%s)", r.Name, r.Why))
	}
	if len(known) == 0 {
		known = []string{"none: no waypoint in use offers one"}
	}
	p.linef("Converters for %s (%s): %s", which, c.Use, strings.Join(known, ", "))
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

func (p *printer) connections(u *api.Using, isMember bool, now time.Time) {
	p.linef("")
	if len(u.Connections) == 0 && len(u.Plain) == 0 {
		p.linef("No MPTCP connections. `dcol run -- PROGRAM` makes a program's connections MPTCP.")
		return
	}
	if n := len(u.Plain); n > 0 {
		p.linef("%s plain TCP although the program requests MPTCP: the server does not speak MPTCP, or something on the path removes it", plural(n, "connection is", "connections are"))
		p.linef("  to %s", someAddrs(u.Plain))
		if !usesConverters(u.Converting) {
			p.converterWanted(u.Converting.Offered, isMember)
		}
	}
	if len(u.Connections) == 0 {
		return
	}
	p.connectionTables(u.Connections, p.details, now)
}

// converterWanted says how a converter could carry plain connections: with one word if a waypoint in use offers one.
func (p *printer) converterWanted(offered []string, isMember bool) {
	const nobody = "  A converter could carry them over several paths, but no waypoint in use offers one"
	switch {
	case len(offered) > 0:
		p.linef("  The converter of %s could carry them over several paths: `dcol convert auto`. It sees what it carries; TLS stays encrypted.", strings.Join(offered, " or "))
	case isMember:
		p.linef("%s. `dcol members` shows who does: `dcol convert auto` and a restart of the agent have such a waypoint chosen.", nobody)
	default:
		p.linef("%s: ask its operator to add \"converter\" to waypoint.offers.", nobody)
	}
}

// connectionTables describes connections, and what they found when they tried waypoints if tried is set.
func (p *printer) connectionTables(list []api.Connection, tried bool, now time.Time) {
	p.linef("Connections")
	more := 0
	if !p.details && len(list) > mostConnections {
		more = len(list) - mostConnections
		list = slices.SortedStableFunc(slices.Values(list), func(a, b api.Connection) int { return cmp.Compare(rateOf(b), rateOf(a)) })[:mostConnections]
	}
	for _, c := range list {
		note := ""
		if c.Note != "" {
			note = "  (" + c.Note + ")"
		}
		if c.Policy != "" {
			note = ", " + c.Policy + note
		}
		p.linef("  to %v, for %s%s", c.Remote, age(now, c.Since), note)
		if p.details {
			p.linef("    from %v, token %s, traffic: %s", c.Local, c.Token, cmp.Or(c.Traffic, "not known yet"))
		}
		p.subflows(c.Subflows, now)
		if tried {
			p.tried(c.Tried, now)
		}
	}
	if more > 0 {
		p.linef("  and %s: dcol status -d", plural(more, "connection with a lower rate", "connections with lower rates"))
	}
}

// subflows describes subflows, and the reason for each.
func (p *printer) subflows(list []api.Subflow, now time.Time) {
	var rows [][]string
	header := "  PATH|STATE|RTT|IN|OUT|RECEIVED|SENT"
	if p.details {
		header += "|FOR|FROM|TO|LEAST RTT|RETRANS|WINDOW"
	}
	for _, s := range list {
		row := []string{
			"  " + pathName(s), string(s.State), trip(s.RTT), rate(s.ReceiveRate), rate(s.SendRate), bytes(s.BytesReceived), bytes(s.BytesSent),
		}
		if p.details {
			row = append(row, age(now, s.Since), endpoint(s.Local), endpoint(s.Remote), trip(s.MinRTT), fmt.Sprint(s.Retransmitted), fmt.Sprint(s.CongWindow))
		}
		rows = append(rows, row)
	}
	p.table(header, rows)
	for _, s := range list {
		if s.Why != "" {
			p.linef("      %s: %s", pathName(s), s.Why)
		}
	}
}

// rateOf returns what a connection carries in both directions.
func rateOf(c api.Connection) (sum float64) {
	for i := range c.Subflows {
		sum += c.Subflows[i].ReceiveRate + c.Subflows[i].SendRate
	}
	return sum
}

// plural returns a number with the word for one or for several.
func plural(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// someAddrs returns the first ten distinct addresses, and the number of the others.
func someAddrs(list []netip.AddrPort) string {
	var words []string
	for _, a := range list {
		if w := a.String(); !slices.Contains(words, w) {
			words = append(words, w)
		}
	}
	return some(words)
}

func (p *printer) serving(s *api.Serving) {
	p.linef("")
	p.linef("Waypoint: listening on UDP %s, offers %s; %s, %s, %s granted", s.Listen, strings.Join(s.Offers, ", "),
		count(s.Sessions, "session"), count(s.Mappings, "mapping"), count(int(s.Granted), "request"))
	p.limits(s.Given)
	if i := s.InBand; i != nil {
		p.linef("  in-band: SYNs accepted from %s%s", count(i.Addresses, "address"), inBandSYNs(i))
	}
	if n := s.FastFlows; n != nil {
		p.linef("  fast path: %s", count(*n, "connection"))
	}
	if o := s.Outside; o != nil {
		p.linef("  from outside: %s", fromOutside(o))
	}
	for _, code := range slices.Sorted(maps.Keys(s.Refused)) {
		p.linef("  refused %d: %s", s.Refused[code], code)
	}
	var rows [][]string
	for _, m := range s.Members {
		rows = append(rows, []string{m.Member, fmt.Sprint(m.Mappings), fmt.Sprint(m.Tunnels), fmt.Sprint(m.Flows), bytes(m.Bytes)})
	}
	if len(rows) > 0 {
		p.table("MEMBER|MAPPINGS|TUNNELS|FLOWS|CARRIED", rows)
	}
}

// fromOutside describes how others reach a waypoint.
func fromOutside(o *api.Outside) string {
	text, left := o.NAT, strings.ReplaceAll(string(o.Leaves), "-", " ")
	switch {
	case len(o.Opened) > 0:
		text = fmt.Sprintf("the router has opened %v (%s)", o.Opened[0].External, o.Router)
	case o.Address.IsValid():
		text = fmt.Sprintf("%s, seen at %v", o.NAT, o.Address)
	}
	switch {
	case o.Why == "":
		text += "; " + left
	case len(o.Opened) > 0:
		text += "; not known yet whether others reach it: " + o.Why
	default:
		text = "not known yet whether others reach this waypoint: " + o.Why
	}
	if o.Problem != "" {
		text += "; " + o.Problem + ": " + o.Mend
	}
	return text
}

// inBandSYNs describes how many SYNs were accepted and rejected.
func inBandSYNs(i *api.InBand) string {
	if !i.Authenticated {
		return ", without an authenticator"
	}
	return fmt.Sprintf("; forwarded: %d; rejected: %d from unknown addresses, %d not authentic, %d replayed, %d malformed",
		i.Accepted, i.UnknownAddress, i.BadAuthenticator, i.Replayed, i.Malformed)
}

// count returns a number with its noun.
func count(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"):
		return fmt.Sprintf("%d %ses", n, thing)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func pathName(s api.Subflow) string {
	if s.Waypoint == "" {
		return s.Kind
	}
	return fmt.Sprintf("via %s (%s)", s.Waypoint, s.Kind)
}

func endpoint(a netip.AddrPort) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

// age returns a time span in words.
func age(now, since time.Time) string {
	if since.IsZero() {
		return ""
	}
	d := max(now.Sub(since), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func rate(bps float64) string { return units.FormatRate(bps) }

func bytes(n uint64) string { return units.FormatBytes(n) }
