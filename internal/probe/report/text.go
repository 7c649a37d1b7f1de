package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/detour-collective/dcol/internal/printable"
)

// WriteText writes the summary as text.
func (s *Summary) WriteText(w io.Writer) error {
	out := &strings.Builder{}
	for _, group := range s.groups() {
		first := group[0]
		fmt.Fprintf(out, "%s to %s: %s, in %s\n", first.Shape, printable.Text(first.Server), first.Measure, first.Unit)
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(table, "over\texchanges\tfailed\tp10\tmedian\tp90\tp95\tp99\tmax\tconnect ms\t  replies came by")
		for _, one := range group {
			v := "–\t–\t–\t–\t–\t–\t–"
			if q := one.Values; q != nil {
				v = fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s", short(q.P10), short(q.P50), short(q.P90), short(q.P95), short(q.P99), short(q.Max), short(one.Connect.P50))
			}
			fmt.Fprintf(table, "%s\t%d\t%d\t%s\t  %s\n", one.Way, one.Exchanges, one.Failed, v, one.paths())
		}
		if err := table.Flush(); err != nil {
			return err
		}
		for _, one := range group {
			if one.FellBack > 0 {
				fmt.Fprintf(out, "%d of %d connections over %s were plain TCP: %s\n", one.FellBack, one.Exchanges, one.Way, plainReasons)
			}
			for _, reason := range slices.Sorted(maps.Keys(one.Errors)) {
				fmt.Fprintf(out, "over %s, %s: %s\n", one.Way, times(one.Errors[reason]), printable.Text(reason))
			}
		}
		fmt.Fprintln(out)
	}
	if s.From != nil {
		fmt.Fprintf(out, "%d exchanges from %s to %s\n", s.Records, clock(*s.From), clock(*s.To))
	}
	for _, gap := range s.Gaps {
		fmt.Fprintf(out, "no results for %v: from %s to %s\n", gap.To.Sub(gap.From).Round(time.Second), clock(gap.From), clock(gap.To))
	}
	if s.Damaged > 0 {
		fmt.Fprintf(out, "%d damaged lines were left out\n", s.Damaged)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// groups returns the series grouped by server and shape.
func (s *Summary) groups() (groups [][]Series) {
	for i, one := range s.Series {
		if i == 0 || s.Series[i-1].Server != one.Server || s.Series[i-1].Shape != one.Shape {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], one)
	}
	return groups
}

// paths lists the paths of replies with their shares, the most frequent first.
func (s *Series) paths() string {
	sum := 0
	for _, n := range s.Replies {
		sum += n
	}
	names := slices.SortedFunc(maps.Keys(s.Replies), func(a, b string) int {
		return cmp.Or(s.Replies[b]-s.Replies[a], strings.Compare(a, b))
	})
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %.0f %%", printable.Text(name), 100*float64(s.Replies[name])/float64(sum)))
	}
	return cmp.Or(strings.Join(parts, ", "), "–")
}

// plainReasons explains why connections that requested MPTCP are plain TCP.
const plainReasons = "the server or the path does not let MPTCP through, or SYNs were lost, after which Linux tries no MPTCP for a while (sysctl net.mptcp.blackhole_timeout)"

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// short formats a value with three significant digits.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
