package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	// dear is the part of plain TCP's goodput below which a detour costs something.
	dear = 0.98
	// impossible is the part of it that no connection carries over a shared link.
	impossible = 2 - dear
	// short is an answer of which the end matters, in ms.
	short = 300
	// many is how many times TCP's retransmissions are a cause, if they are at least
	// some more.
	many, some = 2, 10
	// credit is how much above its steady goodput TCP's is if it is given something.
	credit = 1.005
)

// cost is a place in which a procedure with a detour carries less than plain TCP.
type cost struct {
	network *network
	row, of Row // and TCP's in the same place
}

func (c cost) ratio() float64 { return *c.row.Median / *c.of.Median }

// steady is the ratio from the fourth second that counts on, 0 if there is none.
func (c cost) steady() float64 {
	if c.row.Steady == nil || c.of.Steady == nil {
		return 0
	}
	return *c.row.Steady / *c.of.Steady
}

func (c cost) steadily() entry {
	if c.steady() == 0 {
		return none()
	}
	return entry{Text: fmt.Sprintf("%.3f", c.steady())}
}

// costs lists all places in which a detour costs something, and why, as far as the
// runs show it.
func (b *book) costs() ([]section, error) {
	places, found := 0, []cost(nil)
	for _, n := range b.networks {
		if n.paced() {
			continue
		}
		for _, r := range n.rows {
			tcp, ok := n.row(cell{r.Variant, "tcp", r.Congestion})
			if !usesDetour(r.Procedure) || r.Median == nil || !ok || tcp.Median == nil || *tcp.Median == 0 {
				continue
			}
			places++
			if c := (cost{n, r, tcp}); c.ratio() < dear {
				found = append(found, c)
			}
		}
	}
	if places == 0 {
		return nil, nil
	}
	slices.SortStableFunc(found, func(x, y cost) int { return cmp.Compare(x.ratio(), y.ratio()) })
	s := section{ID: "costs", Title: "Where a detour costs"}
	s.Text = append(s.Text, fmt.Sprintf("In %d of %d combinations of a place and a procedure with a detour a connection carries more than %.0f %% less than plain TCP on the direct path there.",
		len(found), places, 100*(1-dear)))
	if all, late, ratio, worst := b.latePlaces(); late > 0 {
		s.Text = append(s.Text, fmt.Sprintf("Of messages and requests that a program sends at a pace of its own, the 99th percentile is later by a quarter or more in %d of %d, "+
			"at worst %.1f times plain TCP's (%s). The kernel's scheduler gives each path a part of them, whatever the path is like: some take as long as the slow path does. On a path "+
			"that loses there is often nothing behind a lost one that would tell of it, so that it waits for a timeout, of which the kernel's least is 200 ms. "+
			"Where that is stands beside the latencies.", late, all, ratio, worst))
	}
	if len(found) > 0 {
		s.Tables = append(s.Tables, costTable(found))
	}
	return []section{s}, nil
}

func costTable(found []cost) table {
	t := table{
		Title: "All places where it is less by more than 2 %", Words: 1,
		Note: "From the lowest ratio to the highest. Goodput in Mbit/s, medians; steady is the ratio from the fourth second that counts on; sent again are segments, on all paths. What is more than the cause has no explanation yet.",
		Head: []string{"where, and known cause", "ours", "TCP", "ratio", "steady", "sent again", "TCP's"},
	}
	for _, c := range found {
		t.Rows = append(t.Rows, []entry{
			{Text: c.row.Procedure, Below: []string{place(c.network, c.network.variant(c.row.Variant), c.row.Congestion), c.cause()}},
			{Text: digits(*c.row.Median)}, {Text: digits(*c.of.Median)}, {Text: fmt.Sprintf("%.3f", c.ratio())}, c.steadily(),
			{Text: fmt.Sprintf("%.0f", c.row.Retransmitted)}, {Text: fmt.Sprintf("%.0f", c.of.Retransmitted)},
		})
	}
	return t
}

// cause is what the numbers of the place itself tell.
func (c cost) cause() string {
	headers := fmt.Sprintf("MPTCP's headers are %.1f %% of it", headerPct)
	mapped, plain := c.network.median(cell{c.row.Variant, "dcol", c.row.Congestion})
	tunnel, inTunnel := c.tunnelPct()
	switch {
	case c.row.Latency != nil && c.row.Latency.P50MS < short:
		return "the kernel's scheduler gives the end of a short answer to the detour, which has only just come up"
	case inTunnel:
		return fmt.Sprintf("headers: the tunnel's are %.1f %% of all that is carried, MPTCP's %.1f %%", tunnel, headerPct) + c.credited()
	case plain && mapped > *c.row.Median && isTunnel(c.row.Procedure):
		return "what the tunnel adds to the detour's packets" + c.credited()
	case c.row.Variant == queue2017:
		return headers + "; of two subflows that wait for a second in one queue one gets ahead, and what it brought is not in order when the measure ends"
	case c.credited() != "" && *c.row.Median >= dear**c.of.Steady:
		return strings.TrimPrefix(c.credited(), "; ")
	case c.row.Retransmitted >= max(many*c.of.Retransmitted, c.of.Retransmitted+some):
		return "what one subflow lost is sent again, and holds up what came on the other"
	case c.steady() > impossible:
		return "what both subflows lose in the first three seconds that count holds up what is delivered after them, so that steady is more than the link carries"
	case c.steady() >= dear:
		return "the first three seconds that count: both subflows begin"
	}
	return headers + c.credited()
}

// credited says that plain TCP was given more than it carries, if it was.
func (c cost) credited() string {
	if c.of.Steady == nil || *c.of.Median <= credit**c.of.Steady {
		return ""
	}
	return fmt.Sprintf("; TCP is given %.2f where it carries %.2f, for what a loss in the omitted second held up", *c.of.Median, *c.of.Steady)
}

func isTunnel(procedure string) bool {
	return strings.HasSuffix(procedure, "openvpn") || strings.HasSuffix(procedure, "wireguard")
}

// tunnelPct is how much the tunnel's own headers are of what is carried: what plain TCP loses to them, by
// the detour's part of the bytes.
func (c cost) tunnelPct() (pct float64, ok bool) {
	tunnel := strings.TrimPrefix(c.row.Procedure, "dcol")
	if !isTunnel(c.row.Procedure) {
		return 0, false
	}
	kept := pctOf(c.network.medians(c.row.Variant, c.row.Congestion), "tcp"+tunnel, "tcp-detour")
	part, ok := detourPct(c.row.BytesPerPath)
	if kept == nil || !ok {
		return 0, false
	}
	return (100 - *kept) * part / 100, true
}
