package ui

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/printable"
)

// mostClosed bounds the ended connections in the output.
const mostClosed = 5

// Why writes which paths connections to a server take, and why, as text. On a terminal, it folds long lines.
func Why(w io.Writer, x api.Why, now time.Time) error {
	return (&printer{w: w, columns: columnsOf(w)}).why(&x, now)
}

// WhyText returns what Why writes to a terminal of this width.
func WhyText(x api.Why, now time.Time, columns int) string {
	var b strings.Builder
	if err := (&printer{w: &b, columns: columns}).why(&x, now); err != nil {
		return err.Error()
	}
	return b.String()
}

func (p *printer) why(x *api.Why, now time.Time) error {
	switch {
	case len(x.Connections) > 0:
		p.connectionTables(x.Connections, true, now)
	case len(x.Closed) == 0:
		p.linef("No connection to %v was seen lately.", x.Server.Addr())
	}
	if len(x.Closed) > 0 {
		p.linef("Ended lately")
	}
	for _, c := range x.Closed[:min(len(x.Closed), mostClosed)] {
		var paths []string
		for _, s := range c.Subflows {
			paths = append(paths, pathName(s))
		}
		p.linef("  to %s, ended %s ago, after %s: %s", destination(&c.Connection), age(now, c.Ended), age(c.Ended, c.Since), cmp.Or(strings.Join(paths, ", "), "no path"))
		for _, s := range c.Subflows {
			if s.Why != "" {
				p.linef("    %s: %s", pathName(s), s.Why)
			}
		}
		p.left(c.Left, now)
	}
	p.linef("")
	p.linef("A new connection to %v", x.Server)
	p.paths(x, now)
	for _, line := range slices.Concat(Bottlenecks(x.Candidates), Claims(x.Candidates)) {
		p.linef("  %s", line)
	}
	for _, u := range x.Unavailable {
		p.linef("  none through %s, which is %s: %s", u.Waypoint, u.State, u.Why)
	}
	if x.Note != "" {
		p.linef("  no detour: %s", x.Note)
	}
	if x.Converter != "" {
		p.linef("  converters: %s", x.Converter)
	}
	for _, fix := range x.Fixes {
		p.linef("  to fix it: %s", fix)
	}
	p.probed(x.Probed, now)
	return p.err
}

// paths writes the paths that a new connection might take.
func (p *printer) paths(x *api.Why, now time.Time) {
	isKnown := x.Direct.Expected != nil || slices.ContainsFunc(x.Candidates, func(c api.Candidate) bool { return c.Expected != nil })
	expected := func(r *float64) string {
		switch {
		case !isKnown:
			return "" // the column is left out
		case r == nil:
			return "-"
		default:
			return rate(*r)
		}
	}
	d := &x.Direct
	rows := [][]string{{"direct", "yes", trip(d.Wait), trip(d.MinRTT), lost(d.Measured), got(d.Measured), expected(d.Expected), ""}}
	for _, alike := range alikes(x.Candidates, now) {
		c := alike[0]
		rows = append(rows, []string{
			candidateNames(alike, x.Candidates), taken(c.Taken), wait(c), trip(c.Measured.MinRTT), lost(c.Measured), got(c.Measured), expected(c.Expected), explained(c, now),
		})
	}
	p.wrappedTable("PATH|TAKEN|A MESSAGE TAKES|LEAST RTT|LOSS|BULK RATE|ONE MORE GETS|WHY", rows)
	if isKnown {
		p.linef("  BULK RATE is what all bulk connections together got on a path, ONE MORE GETS what another may expect beside those that run now.")
	}
}

// explained returns why a detour would be taken or not, and what would change that.
func explained(c api.Candidate, now time.Time) string {
	why := c.Why + until(c.Until, now)
	if c.Change != "" {
		why += "; " + c.Change
	}
	return why + untried(c)
}

// left writes the paths that a connection left.
func (p *printer) left(list []api.Left, now time.Time) {
	if len(list) > 0 {
		p.linef("    Paths that it left")
	}
	for _, d := range list {
		is := "became a backup"
		if d.Ended {
			is = "ended"
		}
		p.linef("      %s, %s ago: %s, because %s", pathName(api.Subflow{Kind: d.Kind, Waypoint: d.Waypoint}), age(now, d.At), is, d.Why)
	}
}

// tried writes the results of the waypoints that a connection tried.
func (p *printer) tried(list []api.Tried, now time.Time) {
	if len(list) > 0 {
		p.linef("    Waypoints that it tried")
	}
	for _, r := range list {
		p.linef("      %s, %s ago: %s", r.Waypoint, age(now, r.At), r.Why)
	}
}

// Bottlenecks returns a sentence for each two paths whose bottlenecks were compared, and one that names the other waypoints
// that carried bulk traffic.
func Bottlenecks(candidates []api.Candidate) (lines []string) {
	done := make(map[string]bool)
	var others []string
	for _, c := range candidates {
		if done[c.Waypoint] {
			continue
		}
		done[c.Waypoint] = true
		for _, b := range c.Bottlenecks {
			switch {
			case b.Pairs > 0:
				lines = append(lines, fmt.Sprintf("%s and %s: %s", c.Waypoint, cmp.Or(b.With, "the direct path"), bottleneckWords(b)))
			case c.Measured.Goodput > 0:
				others = append(others, c.Waypoint)
			}
		}
	}
	if len(others) > 0 {
		lines = append(lines, fmt.Sprintf("%s: not compared with the direct path yet, so it is not known whether they share a bottleneck", strings.Join(others, ", ")))
	}
	return lines
}

func bottleneckWords(b api.Bottleneck) string {
	lost := fmt.Sprintf("when one gains, the other loses %.0f %% of that; 95 %% interval %.0f to %.0f %%, %d comparisons", 100*b.Lost, 100*b.Least, 100*b.Most, b.Pairs)
	switch {
	case b.Relation == "shared":
		return "they share a bottleneck (" + lost + ")"
	case b.Relation == "apart":
		return "each has a bottleneck of its own (" + lost + ")"
	case b.Least == 0 && b.Most == 0:
		return fmt.Sprintf("not known yet whether they share a bottleneck (%d of 3 comparisons)", b.Pairs)
	default:
		return "not known yet whether they share a bottleneck (" + lost + ")"
	}
}

// Claims returns what other members measured of waypoints, a sentence for each waypoint.
func Claims(candidates []api.Candidate) (lines []string) {
	done := make(map[string]bool)
	for _, c := range candidates {
		if c.Claimed == nil || done[c.Waypoint] {
			continue
		}
		done[c.Waypoint] = true
		lines = append(lines, fmt.Sprintf("other members on %s: %s", c.Waypoint, claimedWords(c.Claimed)))
	}
	return lines
}

func claimedWords(c *api.Claimed) string {
	wrong := ""
	if c.Wrong > 0 {
		wrong = fmt.Sprintf("; %s not believed: what they measured elsewhere differs from what this host measured", members(c.Wrong))
	}
	if c.Members == 0 {
		return "nothing" + wrong
	}
	standing := "not confirmed"
	if c.Proven {
		standing = "confirmed by this host elsewhere"
	}
	var said []string
	if c.Loss != "" {
		said = append(said, "loss "+printable.Text(c.Loss))
	}
	if c.Goodput != "" {
		said = append(said, "bulk rate "+printable.Text(c.Goodput))
	}
	return fmt.Sprintf("%s (%s, %s)%s", strings.Join(said, ", "), members(c.Members), standing, wrong)
}

func members(n int) string {
	if n == 1 {
		return "1 member"
	}
	return fmt.Sprintf("%d members", n)
}

// Probed writes the results of the agent's probes of paths, with their age.
func Probed(w io.Writer, list []api.ProbedPath, now time.Time) error {
	p := &printer{w: w, columns: columnsOf(w)}
	p.probed(list, now)
	return p.err
}

// probed writes the results of probes of paths.
func (p *printer) probed(list []api.ProbedPath, now time.Time) {
	for i, path := range list {
		if i == 0 {
			p.linef("")
			p.linef("Probed paths")
		}
		to := path.To.String()
		if path.Waypoint != "" {
			to = path.Waypoint + ", " + path.To.Addr().String()
		}
		p.linef("  to %s, %s, %s ago (%s): %s", printable.Text(to), printable.Text(path.Recipe), age(now, path.At), printable.Text(path.Confidence), printable.Text(path.Text))
		for _, e := range path.Evidence {
			p.linef("    %s", printable.Text(e))
		}
	}
}

// alikes puts detours that differ by their kind alone into one list: those through the same waypoint that would not be
// taken, have the same reason, and were measured alike or not at all. Guesses may differ.
func alikes(list []api.Candidate, now time.Time) (all [][]api.Candidate) {
	for _, c := range list {
		same := func(l []api.Candidate) bool {
			o := &l[0]
			return !c.Taken && !o.Taken && c.Waypoint != "" && c.Waypoint == o.Waypoint && explained(c, now) == explained(*o, now) &&
				c.Measured == o.Measured && expectation(c) == expectation(*o) && (c.Guessed && o.Guessed || c.Wait == o.Wait)
		}
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i] = append(all[i], c)
		} else {
			all = append(all, []api.Candidate{c})
		}
	}
	return all
}

// expectation returns what one more bulk connection may expect, and a negative rate if that is unknown.
func expectation(c api.Candidate) float64 {
	if c.Expected == nil {
		return -1
	}
	return *c.Expected
}

// candidateNames names detours through one waypoint. A kind has the waypoint's address if another detour of that kind
// leads to another address.
func candidateNames(alike, all []api.Candidate) string {
	c := alike[0]
	if c.Waypoint == "" {
		return c.Kind
	}
	kinds, sep := make([]string, len(alike)), ", "
	for i, a := range alike {
		kinds[i] = a.Kind
		if slices.ContainsFunc(all, func(o api.Candidate) bool { return o.Waypoint == a.Waypoint && o.Kind == a.Kind && o.Addr != a.Addr }) {
			kinds[i], sep = fmt.Sprintf("%s, %v", a.Kind, a.Addr), "; "
		}
	}
	return fmt.Sprintf("via %s (%s)", c.Waypoint, strings.Join(kinds, sep))
}

func taken(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// untried returns the end of a sentence about a detour that would be taken. It warns if the detour was not used
// recently, because it may not work.
func untried(c api.Candidate) string {
	if c.Taken && c.Untried {
		return "; not tried with this server lately"
	}
	return ""
}

func trip(ms float64) string {
	if ms == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", ms)
}

func wait(c api.Candidate) string {
	switch {
	case c.AtLeast:
		return "at least " + trip(c.Wait)
	case c.Guessed:
		return "about " + trip(c.Wait)
	default:
		return trip(c.Wait)
	}
}

func lost(m api.Measured) string {
	if m.At.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*m.Loss)
}

// got returns the rate of bulk traffic as text.
func got(m api.Measured) string {
	if m.Goodput == 0 {
		return "-"
	}
	return rate(m.Goodput)
}

// until returns the end of a sentence, with the time until which something lasts. It has the year if that is another one.
func until(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	layout := "2 Jan 15:04:05"
	if t.Local().Year() != now.Local().Year() {
		layout = "2 Jan 2006 15:04:05"
	}
	return ", until " + t.Local().Format(layout)
}

// Steering writes as text which waypoints are used first or never.
func Steering(w io.Writer, s api.Steering, now time.Time) error {
	p := &printer{w: w}
	if !steered(s) {
		p.linef("No waypoint is preferred or avoided: dcol chooses by its measurements.")
	}
	p.steering(s, now)
	return p.err
}

func steered(s api.Steering) bool { return len(s.Use)+len(s.Avoid) > 0 }

func (p *printer) steering(s api.Steering, now time.Time) {
	names := func(list []api.Steered) string {
		words := make([]string, len(list))
		for i, w := range list {
			words[i] = w.Name + until(w.Until, now)
			if w.Unknown {
				words[i] += " (this host knows no such waypoint)"
			}
		}
		return strings.Join(words, "; ")
	}
	switch {
	case len(s.Use) == 0:
	case s.Only:
		p.linef("Taken, and no other: %s", names(s.Use))
	default:
		p.linef("Taken first: %s", names(s.Use))
	}
	if len(s.Avoid) > 0 {
		p.linef("Never taken: %s", names(s.Avoid))
	}
	if s.Warning != "" {
		p.linef("%s", s.Warning)
	}
}
