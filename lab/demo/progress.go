package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// headerShare is the share of TCP's payload that MPTCP leaves in a full segment of a download: its DSS option
// takes 28 of 1448 bytes (RFC 8684, section 3.3, with the 8-byte sequence numbers and acknowledgements that
// Linux uses).
const headerShare = 1420.0 / 1448

// barWidth is the width of a full progress bar, in characters.
const barWidth = 32

// progress prints the progress: a moving line on a terminal, otherwise one line per act.
type progress struct {
	w        io.Writer
	terminal bool
}

func newProgress(w io.Writer) *progress {
	f, isFile := w.(*os.File)
	return &progress{w: w, terminal: isFile && term.IsTerminal(int(f.Fd()))}
}

func (p *progress) opening(s *scenario.Scenario) {
	fmt.Fprintf(p.w, `A network of %d hosts in namespaces, as in the 2017 evaluation:

  client ─── r1 ═════ 10 Mbit/s ═════ r2 ─── server
               ╲                     ╱
            10 Mbit/s           10 Mbit/s
                 ╲                 ╱
                  ╰───── r3 ──────╯
                         │
                      waypoint

`, len(s.Hosts))
}

func (p *progress) begin(n int, title string) { fmt.Fprintf(p.w, "%d. %s\n", n, title) }

func (p *progress) live(l experiment.Live, size int64) {
	if !p.terminal {
		return
	}
	done := min(float64(l.Bytes)/float64(size), 1)
	filled := int(done * barWidth)
	var paths []string
	for _, path := range l.Paths {
		paths = append(paths, fmt.Sprintf("%s %.1f", path.Path, path.Mbps))
	}
	fmt.Fprintf(p.w, "\r\x1b[K   %s%s %3.0f %%  %5.1f Mbit/s   %s",
		strings.Repeat("█", filled), strings.Repeat("░", barWidth-filled), 100*done, l.Mbps, strings.Join(paths, " + "))
}

func (p *progress) end(r report.Run) {
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintf(p.w, "   %.1f s, %.2f Mbit/s, longest stall %.0f ms, sha256 %s\n",
		r.CompletionSeconds, r.GoodputMbps, r.LongestStallMS, verdict(r.SHA256OK != nil && *r.SHA256OK))
	if !r.Valid() {
		fmt.Fprintf(p.w, "   these numbers are not exact: %s\n", r.Discarded)
	}
}

func verdict(good bool) string {
	if good {
		return "good"
	}
	return "WRONG"
}

// table writes the result for a person.
func (r Result) table(w io.Writer, out string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nplain TCP\t%.2f Mbit/s\n", r.TCPMbps)
	fmt.Fprintf(t, "plain TCP over the detour\t%.2f Mbit/s\n", r.DetourTCPMbps)
	fmt.Fprintf(t, "sum of the two paths\t%.2f Mbit/s\n", r.TCPMbps+r.DetourTCPMbps)
	fmt.Fprintf(t, "dcol\t%.2f Mbit/s\n", r.DColMbps)
	fmt.Fprintf(t, "dcol of the sum\t%.1f %% (MPTCP's headers leave %.1f %%)\n", 100*r.RatioOfSum, 100*headerShare)
	for _, path := range []string{scenario.DirectPath, "waypoint"} {
		fmt.Fprintf(t, "bytes over the subflow %s\t%.2f MB\n", map[bool]string{true: "on the direct path", false: "through the waypoint"}[path == scenario.DirectPath],
			float64(r.SubflowBytes[path])/1e6)
	}
	fmt.Fprintf(t, "a server without MPTCP, through a converter\t%.2f Mbit/s (%.1f %% of the sum)\n", r.ConverterMbps, 100*r.ConverterRatioOfSum)
	fmt.Fprintf(t, "sha256 of all downloads\t%s\n", verdict(r.SHA256OK))
	fmt.Fprintf(t, "longest stall when the waypoint was killed\t%.0f ms\n", r.LongestStall)
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	if !r.Exact {
		fmt.Fprintln(w, "\nThese numbers are not exact: the machine was too busy to emulate the links as declared.")
	}
	_, err := fmt.Fprintf(w, "\n%[1]s/result.json; plots, as .png and .svg: %[1]s/goodput, %[1]s/waypoint-killed, %[1]s/converter\n", out)
	return err
}
