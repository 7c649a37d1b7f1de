package present

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/paths"
)

// place is an address at a distance.
type place struct {
	distance int
	addr     netip.Addr
}

// letters gives each vertex a short name: a to z, then aa and so on.
func letters(g *paths.Graph) map[place]string {
	all := map[place]string{}
	for _, h := range g.Hops {
		for _, v := range h.Vertices {
			text, n := "", len(all)
			for ; n >= 0; n = n/26 - 1 {
				text = string(rune('a'+n%26)) + text
			}
			all[place{h.Distance, v.Addr}] = text
		}
	}
	return all
}

// Text writes a report as text: for each distance its routers and the edges to them, then the ports of distinct paths.
func Text(out io.Writer, r Report) error {
	w := bufio.NewWriter(out)
	g := r.Graph
	target := r.Destination.String()
	if r.Name != "" && r.Name != target {
		target = fmt.Sprintf("%s (%s)", r.Name, target)
	}
	fmt.Fprintf(w, "Paths to %s: %s port %d.\n\n", target, strings.ToUpper(r.Protocol), r.Port)
	letter := letters(g)
	width := len("address")
	for _, h := range g.Hops {
		for _, v := range h.Vertices {
			width = max(width, len(shown(v.Addr)))
		}
	}
	fmt.Fprintf(w, "hop      %-*s  round trip  from\n", width, "address")
	for _, h := range g.Hops {
		for i, v := range h.Vertices {
			number := ""
			if i == 0 {
				number = fmt.Sprint(h.Distance)
			}
			rtt := ""
			if v.RTT > 0 {
				rtt = fmt.Sprintf("%.1f ms", ms(v.RTT))
			}
			var from []string
			for _, b := range v.Before {
				from = append(from, letter[place{h.Distance - 1, b}])
			}
			line := fmt.Sprintf("%3s  %-2s  %-*s  %10s  %s", number, letter[place{h.Distance, v.Addr}], width, shown(v.Addr), rtt,
				strings.Join(from, " "))
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "%s, found by %d packets%s.\n", count(g), g.Probes, bound(g))
	if len(r.Distinct) > 1 {
		fmt.Fprintf(w, "Source ports that lead to distinct paths:\n")
		writeLines(w, letter, r.Distinct)
	} else if len(r.Distinct) == 1 && r.Distinct[0].Quality != nil {
		fmt.Fprintf(w, "Probes of the path:\n")
		writeLines(w, letter, r.Distinct)
	}
	if s := r.Session; s != nil {
		fmt.Fprintf(w, "The connection from port %d shares its path with probes from:\n", s.Port)
		writeLines(w, letter, []Line{s.Probe})
	}
	for _, note := range notes(r) {
		fmt.Fprintf(w, "Note: %s\n", note)
	}
	return w.Flush()
}

// writeLines writes the ports of paths, and what was measured on them.
func writeLines(w io.Writer, letter map[place]string, lines []Line) {
	measured := slices.ContainsFunc(lines, func(l Line) bool { return l.Quality != nil })
	if measured {
		fmt.Fprintf(w, "   port    lost         round trip: least, median, most\n")
	}
	for _, l := range lines {
		var way []string
		for d, a := range l.Vertices {
			way = append(way, letter[place{d + 1, a}])
		}
		fmt.Fprintf(w, "  %5d  ", l.Ports.Source)
		if q := l.Quality; q != nil {
			trips := fmt.Sprintf("%.1f  %.1f  %.1f ms", ms(q.Least), ms(q.Median), ms(q.Most))
			if q.Lost == q.Sent {
				trips = "no answer"
			}
			fmt.Fprintf(w, "%-11s  %-31s  ", fmt.Sprintf("%d of %d", q.Lost, q.Sent), trips)
		}
		fmt.Fprintln(w, strings.Join(way, " "))
	}
}

func shown(a netip.Addr) string {
	if !a.IsValid() {
		return "no answer"
	}
	return a.String()
}

func count(g *paths.Graph) string {
	if n := g.Paths(); n != 1 {
		return fmt.Sprintf("%d paths", n)
	}
	return "One path"
}

func bound(g *paths.Graph) string {
	switch {
	case g.Bound == 0:
		return ""
	case g.PerRouter:
		return fmt.Sprintf("; at each router, another next hop was missed with a probability of at most %.3g %%", 100*g.Bound)
	}
	return fmt.Sprintf("; any other was missed with a probability of at most %.3g %%", 100*g.Bound)
}

// notes returns the report's notes and those that follow from the graph.
func notes(r Report) []string {
	all := r.Notes
	if !r.Graph.Reached {
		all = append(all, "the destination did not answer; the graph ends where routers ceased to")
	}
	for _, h := range r.Graph.Hops {
		for _, v := range h.Vertices {
			if v.Translated {
				return append(all, fmt.Sprintf("a NAT before hop %d changes ports: routers behind it see others than those above",
					h.Distance))
			}
		}
	}
	return all
}
