package ui

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/printable"
)

// OptionList writes what this host requests and grants by TCP options.
func OptionList(w io.Writer, t api.Transport) error {
	p := &printer{w: w}
	if t.Options == nil {
		p.linef("This host exchanges no TCP options ([options] in its configuration).")
		return p.err
	}
	var rows [][]string
	for _, o := range t.Options.Known {
		var counts []string
		for _, c := range t.Options.Counts {
			if c.Option == o.Name {
				counts = append(counts, fmt.Sprintf("%d %s", c.Count, c.Verdict))
			}
		}
		rows = append(rows, []string{o.Name, cmp.Or(o.Asks, "-"), cmp.Or(o.Grants, "-"), cmp.Or(strings.Join(counts, ", "), "-")})
	}
	p.table("OPTION|ASKS|GRANTS|REQUESTS", rows)
	with := "all networks"
	if len(t.Options.Networks) > 0 {
		with = strings.Join(t.Options.Networks, ", ")
	}
	p.linef("exchanged with %s; the kernel's program was called %d times", with, t.Options.Calls)
	unannounced(p, t.Options)
	return p.err
}

// unannounced writes to which networks nothing is announced, and why.
func unannounced(p *printer, o *api.Options) {
	const form, most = "2 Jan 15:04:05", 5
	if !o.UnannouncedInternet.IsZero() {
		p.linef("Nothing is announced to the Internet until %s: SYNs with an announcement were lost to several networks in a row. "+
			"A firewall near this host may drop them.", o.UnannouncedInternet.Local().Format(form))
	}
	if len(o.Unannounced) == 0 {
		return
	}
	var list []string
	for _, n := range o.Unannounced[:min(len(o.Unannounced), most)] {
		list = append(list, fmt.Sprintf("%v until %s", n.Network, n.Until.Local().Format(form)))
	}
	if more := len(o.Unannounced) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	p.linef("Nothing is announced to %s, because a SYN with an announcement was lost there, and the next one, without it, was answered: %s.",
		plural(len(o.Unannounced), "network", "networks"), strings.Join(list, ", "))
}

// OptionReports writes the last n requests, the newest last.
func OptionReports(w io.Writer, t api.Transport, n int) error {
	p := &printer{w: w}
	if t.Options == nil {
		return OptionList(w, t)
	}
	recent := t.Options.Recent
	for _, r := range recent[max(0, len(recent)-n):] {
		text := fmt.Sprintf("%s: %s", r.Asked, r.Verdict)
		if r.Granted != "" && r.Granted != r.Asked {
			text += ", " + r.Granted
		}
		if r.Why != "" {
			text += " (" + r.Why + ")"
		}
		who := r.Remote.String() + " asked " + r.Local.String()
		if r.Verdict == "sent" {
			who = r.Local.String() + " asked " + r.Remote.String()
		}
		p.linef("%s  %s for %s: %s", r.At.Local().Format(time.DateTime), who, r.Option, printable.Text(text))
	}
	return p.err
}

// Congestion writes the available congestion controls, and which connections get which.
func Congestion(w io.Writer, t api.Transport) error {
	p := &printer{w: w}
	p.linef("available: %s", printable.Text(strings.Join(t.Available, ", ")))
	if t.Problem != "" {
		p.linef("PROBLEM: %s", t.Problem)
	}
	cgroups := slices.ContainsFunc(t.Congestion, func(c api.Congestion) bool { return c.Cgroup != "" })
	for _, c := range t.Congestion {
		name := c.Name
		if c.Use != c.Name {
			name += " (" + c.Use + ")"
		}
		refused := ""
		if c.Refused > 0 {
			refused = fmt.Sprintf(", refused by the kernel for %d", c.Refused)
		}
		if c.AtRunTime {
			refused += " (until the agent ends, or dcol cc use --reset)"
		}
		p.linef("%s: %s; set for %d%s", name, covered(c, cgroups), c.Set, refused)
	}
	p.linef("%s: all other connections", printable.Text(t.Default))
	return p.err
}

// covered describes the connections to which a table applies. Tables with a cgroup decide for the programs in it. cgroups is
// set if there are any.
func covered(c api.Congestion, cgroups bool) string {
	var parts []string
	switch {
	case c.Cgroup != "":
		parts = append(parts, "of programs in "+c.Cgroup)
	case cgroups:
		parts = append(parts, "of programs outside these cgroups")
	}
	if len(c.Ports) > 0 {
		var list []string
		for _, port := range c.Ports {
			list = append(list, strconv.Itoa(port))
		}
		parts = append(parts, "to port "+strings.Join(list, ", "))
	}
	if len(c.Networks) > 0 {
		parts = append(parts, "with "+strings.Join(c.Networks, ", "))
	}
	if len(parts) == 0 {
		return "all connections"
	}
	return "connections " + strings.Join(parts, ", ")
}
