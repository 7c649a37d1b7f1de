// Package ui prints the agent's answers as text on a terminal. It uses only the versioned types of package api. Each
// file has the words for one command or for one part of `dcol status`; words.go exports some of them for other views.
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

// Status writes s as text, with the busiest connections. On a terminal, it folds long lines.
func Status(w io.Writer, s api.Status, now time.Time) error {
	return status(&printer{w: w, columns: columnsOf(w)}, s, now)
}

// Details writes s as text, with all connections and everything known about each path. On a terminal, it folds long lines.
func Details(w io.Writer, s api.Status, now time.Time) error {
	return status(&printer{w: w, columns: columnsOf(w), details: true}, s, now)
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
		p.waypoints(s.Client, s.Collective != nil, now)
		p.choices(s.Client, now)
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

// choices writes what decides which waypoints and converters are used.
func (p *printer) choices(u *api.Using, now time.Time) {
	p.steering(u.Steering, now)
	p.budgets(u.Budgets)
	p.exploring(u.Exploring)
	p.sampling(u.Sampling)
	if usesConverters(u.Converting) {
		p.converting(u.Converting)
	}
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

// connectionTables writes connections. If past is set, it also writes the waypoints that they tried, and the paths that they
// left.
func (p *printer) connectionTables(list []api.Connection, past bool, now time.Time) {
	p.linef("Connections")
	more := 0
	if !p.details && len(list) > mostConnections {
		more = len(list) - mostConnections
		list = slices.SortedStableFunc(slices.Values(list), func(a, b api.Connection) int { return cmp.Compare(rateOf(b), rateOf(a)) })[:mostConnections]
	}
	for _, c := range list {
		note := ""
		if c.Note != "" {
			note = " (" + c.Note + ")"
		}
		if c.Policy != "" {
			note = ", " + c.Policy + note
		}
		p.linef("  to %s, for %s%s", destination(&c), age(now, c.Since), note)
		if p.details {
			p.linef("    from %v, token %s, traffic: %s", c.Local, c.Token, cmp.Or(c.Traffic, "not known yet"))
		}
		p.subflows(c.Subflows, now)
		if past {
			p.tried(c.Tried, now)
			p.left(c.Left, now)
		}
	}
	if more > 0 {
		p.linef("  and %s: dcol status -d", plural(more, "connection with a lower rate", "connections with lower rates"))
	}
}

// destination names the server of a connection, and the converter through which it goes.
func destination(c *api.Connection) string {
	if !c.Server.IsValid() {
		return c.Remote.String()
	}
	return fmt.Sprintf("%v through the converter of %s (%v)", c.Server, c.Converter, c.Remote)
}

// subflows writes subflows, with the reason for each.
func (p *printer) subflows(list []api.Subflow, now time.Time) {
	var rows [][]string
	header := "  PATH|STATE|RTT|IN|OUT|RECEIVED|SENT"
	if p.details {
		header += "|FOR|FROM|TO|RTT AGE|LEAST RTT|RETRANS|WINDOW"
	}
	for _, s := range list {
		row := []string{
			"  " + pathName(s), string(s.State), trip(s.RTT), rate(s.ReceiveRate), rate(s.SendRate), bytes(s.BytesReceived), bytes(s.BytesSent),
		}
		if p.details {
			row = append(row, age(now, s.Since), endpoint(s.Local), endpoint(s.Remote), tripAge(s, now), trip(s.MinRTT), fmt.Sprint(s.Retransmitted), fmt.Sprint(s.CongWindow))
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

// tripAge returns how long ago a subflow's round trip was measured.
func tripAge(s api.Subflow, now time.Time) string {
	if s.RTT == 0 {
		return "-"
	}
	return age(now, now.Add(-time.Duration(s.RTTAge*float64(time.Second))))
}

// rateOf returns a connection's rate in both directions together, in bits per second.
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

// someAddrs returns the first ten distinct addresses, and how many others there are.
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
		if m.Expelled {
			continue
		}
		rows = append(rows, []string{m.Member, fmt.Sprint(m.Mappings), fmt.Sprint(m.Tunnels), fmt.Sprint(m.Flows), bytes(m.Bytes)})
	}
	if len(rows) > 0 {
		p.table("MEMBER|MAPPINGS|TUNNELS|CONNECTIONS|CARRIED", rows)
	}
}

// fromOutside describes how others reach this waypoint.
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
		text += "; " + o.Problem + ": " + o.Fix
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
