package page

import (
	"fmt"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/report/published"
)

// coupled is the congestion control that MPTCP of 2017 ran. Mainline Linux does not
// have it.
const coupled = "lia"

// congestion compares congestion controls wherever more than one was measured, and
// keeps a place for the one of 2017, which the kernel lacks.
func (b *book) congestion() ([]section, error) {
	s := section{
		ID: "congestion", Title: "Congestion control compared",
		Text: []string{
			"Median goodput in Mbit/s. MPTCP in mainline Linux runs an ordinary congestion control on each subflow by itself, " +
				"whichever the system has. The kernel of 2017 had LIA, which couples the subflows: together they take no more than one " +
				"TCP would on the best of their paths (RFC 6356), and each of them grows at most as fast as Reno.",
			"LIA is in no mainline kernel: its column is kept for it, and has the published means. For OLIA and BALIA, its successors, there is " +
				"none: they are in no mainline kernel either, nor were they measured in 2017. What LIA changes shows under loss: LIA, like Reno, halves its window " +
				"at a loss, while CUBIC gives up three tenths of it and comes back sooner. Uncoupled subflows that share a bottleneck take a share each, " +
				"so two of them can take twice what one TCP gets beside them; that is not measured here.",
		},
	}
	for _, n := range b.networks {
		if t := b.congestionTable(n); len(t.Rows) > 0 {
			s.Tables = append(s.Tables, t)
		}
	}
	if len(s.Tables) == 0 {
		return nil, nil
	}
	return []section{s}, nil
}

func (b *book) congestionTable(n *network) table {
	t := table{Title: n.name, Words: 2, Head: []string{"", "procedure"}}
	for _, c := range n.congestions {
		t.Head = append(t.Head, strings.ToUpper(c))
	}
	if !slices.Contains(n.congestions, coupled) {
		t.Head = append(t.Head, strings.ToUpper(coupled))
	}
	for _, v := range n.variants {
		if len(n.compared(v)) < 2 {
			continue
		}
		for _, procedure := range n.procedures {
			if line, ok := b.congestionLine(n, v, procedure); ok {
				t.Rows = append(t.Rows, line)
			}
		}
	}
	return t.grouped()
}

// compared are the congestion controls with runs in a variant.
func (n *network) compared(v report.Variant) []string {
	var names []string
	for _, r := range n.rows {
		if r.Variant == v.Name && r.N > 0 {
			names = appendNew(names, r.Congestion)
		}
	}
	return names
}

func (b *book) congestionLine(n *network, v report.Variant, procedure string) (line []entry, ok bool) {
	line = words(title(v), procedure)
	measured := 0
	for _, c := range n.congestions {
		value, ok := n.median(cell{v.Name, procedure, c})
		if !ok {
			line = append(line, none())
			continue
		}
		measured++
		line = append(line, entry{Text: fmt.Sprintf("%.2f", value)})
	}
	if !slices.Contains(n.congestions, coupled) {
		line = append(line, b.absent(n, v, procedure))
	}
	return line, measured > 1
}

// absent is the place of the congestion control that the kernel does not have: with
// what was published of it, or empty.
func (b *book) absent(n *network, v report.Variant, procedure string) entry {
	if strings.HasPrefix(procedure, "tcp") {
		return none() // coupling is nothing to a single path
	}
	var p published.Throughput
	setting, ok := settingOf(n.name, v)
	if ok {
		p, ok = b.published.Throughput(setting, procedure)
	}
	if ok && p.Congestion == coupled {
		return entry{Text: fmt.Sprintf("%.2f", p.MeanMbps), Below: []string{"2017"}}
	}
	return entry{Text: "not in mainline", Mark: empty}
}
