package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/lab/report/published"
)

// noticeable is how far from 1 a ratio to a published mean is worth a line.
const noticeable = 0.02

// differences says in words where ours differ from the published numbers, and why,
// as far as that is known: each sentence's numbers are from the runs and the tables.
func (b *book) differences() ([]section, error) {
	if !b.inPapers() {
		return nil, nil
	}
	s := section{ID: "differences", Title: "Where ours differ, and why"}
	for _, paragraph := range []string{
		b.headerWords(), b.queueWords(), b.lossWords("core-limited", "symmetric"), b.responseWords(), b.openVPNWords(), b.shareWords(), methodWords(),
	} {
		if paragraph != "" {
			s.Text = append(s.Text, paragraph)
		}
	}
	if t := b.farthest(); len(t.Rows) > 0 {
		s.Tables = append(s.Tables, t)
	}
	return []section{s}, nil
}

// headerWords is about what MPTCP itself costs.
func (b *book) headerWords() string {
	n := b.network("core-limited")
	if n == nil {
		return ""
	}
	base := published.Setting{Network: n.name, DelayMS: defaultDelayMS}
	ours, _, _ := n.ratio(base, func(value func(string) (float64, bool)) *float64 { return pctOf(value, "mptcp-1", "tcp") })
	theirs := pctOf(b.publishedMean(base), "mptcp-1", "tcp")
	if ours == nil || theirs == nil {
		return ""
	}
	return fmt.Sprintf("What MPTCP costs. One subflow carries %.2f %% of what plain TCP does here, and carried %.2f %% in 2017. Its data "+
		"sequence option takes 24 of the 1448 bytes of a full segment of an upload here, and took 20 in 2017 (thesis, 5.1.4). So "+
		"%.2f %% of the sum of the paths is what two subflows carry here at best, whatever the path manager does; that a median is above it, or "+
		"one per cent below, is what the method gives to some runs and not to others (see Method).", *ours, *theirs, possiblePct)
}

// queue2017 is the variant whose links have the queues of 2017.
const queue2017 = "queue-1000"

// queueWords is about what slow start loses, or does not.
func (b *book) queueWords() string {
	n := b.network("core-limited")
	if n == nil {
		return ""
	}
	short, measured := n.row(cell{baseVariant, "tcp", n.congestions[0]})
	long, measured2017 := n.row(cell{queue2017, "tcp", n.congestions[0]})
	if !measured || !measured2017 || short.Steady == nil || short.Max == nil || long.SD == nil {
		return ""
	}
	text := fmt.Sprintf("Queues. Those of 2017 were Mininet's, of 1000 packets, more than a second of these links, and slow start lost nothing: in the author's data of "+
		"February 2018, after the same method, plain TCP carried between 9.45 and 9.59 Mbit/s in every second that counted, and some runs with two subflows and "+
		"100 ms took five seconds more to empty the queue (data/2018-02-13-MAIN of github.com/brenns10/thesis). Here queues hold 100 ms, as is common today. Slow start fills them and loses packets, and what that holds up in the "+
		"omitted second is counted in the next: one run of plain TCP is given %.2f Mbit/s, where it carries %.2f from the fourth second that counts on. With "+
		"the queues of 2017 it is %.2f in all of them, with a standard deviation of %.2f, as it was then.", *short.Max, *short.Steady, *long.Median, *long.SD)
	var parts []string
	for _, p := range []struct{ procedure, detour, words string }{
		{"dcol", "tcp-detour", "a mapped detour"}, {"dcol-in-band", "tcp-detour", "an in-band one"}, {"dcol-openvpn", "tcp-openvpn", "one through OpenVPN"},
	} {
		if ours := ofSum(n.medians(queue2017, n.congestions[0]), p.procedure, p.detour); ours != nil {
			parts = append(parts, fmt.Sprintf("%.2f %% with %s", *ours, p.words))
		}
	}
	if len(parts) > 0 {
		text += fmt.Sprintf(" Of the sum of what TCP carries on both paths dcol then carries %s.", strings.Join(parts, ", "))
	}
	if s := b.network("symmetric"); s != nil {
		if kept := pctOf(s.medians(queue2017, s.congestions[0]), "dcol", "tcp"); kept != nil {
			text += fmt.Sprintf(" In the symmetric network, where both subflows wait in one such queue, it costs %.1f %%.", 100-*kept)
		}
	}
	return text
}

// lossWords is about loss on the direct path, where the congestion control
// decides.
func (b *book) lossWords(networks ...string) string {
	said := ""
	for _, name := range networks {
		said = joined(said, b.lossIn(name))
	}
	if said == "" {
		return ""
	}
	return "Loss of 1 % on link 2. " + said + " The MPTCP of 2017 was slower than its own plain TCP because LIA is more cautious than " +
		"CUBIC (thesis, 5.1.4); here both run the same congestion control."
}

// lossIn compares what one network carries under loss with what it did.
func (b *book) lossIn(name string) string {
	n := b.network(name)
	if n == nil {
		return ""
	}
	setting := published.Setting{Network: name, LossPct: 1, DelayMS: defaultDelayMS}
	v, ok := n.at(setting.LossPct, setting.DelayMS)
	if !ok {
		return ""
	}
	var parts []string
	for _, p := range []struct{ procedure, words string }{
		{"tcp", "plain TCP on the lossy path gets"}, {"mptcp-1", "one MPTCP subflow there"}, {"dcol", "MPTCP with a detour"},
	} {
		ours, ok := n.median(cell{v.Name, p.procedure, n.congestions[0]})
		theirs, published := b.published.Throughput(setting, p.procedure)
		if ok && published {
			parts = append(parts, fmt.Sprintf("%s %.2f Mbit/s here with %s, %.2f in 2017 with %s", p.words,
				ours, strings.ToUpper(n.congestions[0]), theirs.MeanMbps, strings.ToUpper(theirs.Congestion)))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	kept := ""
	if ratio := pctOf(n.medians(v.Name, n.congestions[0]), "mptcp-1", "tcp"); ratio != nil {
		kept = fmt.Sprintf("; one MPTCP subflow gets %.0f %% of what TCP does", *ratio)
	}
	return fmt.Sprintf("In %s %s%s.", name, strings.Join(parts, "; "), kept)
}

// wholePct is the least loss that was one in 2017. Mininet up to 2.2.2 gave netem the
// rate as a whole number (mininet/link.py has "loss %d"), and of 0.5 % that makes 0.
const wholePct = 1

// responseWords is about plain TCP under loss, which has the same congestion control
// here and in the tables.
func (b *book) responseWords() string {
	n := b.network("core-limited")
	if n == nil {
		return ""
	}
	var parts []string
	for _, v := range n.variants {
		setting, ok := settingOf(n.name, v)
		if !ok || setting.LossPct < wholePct {
			continue
		}
		ours, ok := n.median(cell{v.Name, "tcp", n.congestions[0]})
		theirs, published := b.published.Throughput(setting, "tcp")
		if ok && published {
			loss := setting.LossPct / 100
			parts = append(parts, fmt.Sprintf("%g %%: %.1f here where the equation has %.1f; %.1f in 2017, and %.1f",
				setting.LossPct, ours, response(loss), theirs.MeanMbps, response(loss/2)))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "Plain TCP under loss carried more in 2017, with the same congestion control. That is for the most part what losses of two segments at a time " +
		"do: Mininet's netem draws for what the sender's kernel hands it, two segments at such rates (TSO), and here each packet has luck of " +
		"its own. In a trial here that drew for two segments at a time plain TCP carried 5.6, 3.8 and 1.8 Mbit/s with 1, 2 and 5 %. The equation of " +
		"TCP's response to loss (Mathis et al., 1997) points the same way, in Mbit/s, for loss as it is and for half as many losses: " + strings.Join(parts, "; ") + ". At 5 % timeouts are the limit, which the equation leaves out. At 0.5 % there was most likely no loss at all in 2017: the Mininet " +
		"of the time wrote the rate as a whole number, and what was published for it is what was published without loss."
}

// response is the goodput in Mbit/s that CUBIC has on the direct path with a loss
// probability: as much as Reno (RFC 9438, 4.3), of which Mathis et al. 1997 has the
// equation, 1448 bytes in a round trip times the root of 3/2 over the probability. The
// round trip is that of the links' delays and of a full packet on each of them.
func response(loss float64) float64 {
	const roundTrip = 0.0324
	return 1448 * 8 / roundTrip * math.Sqrt(1.5/loss) / 1e6
}

// openVPNWords is about what the tunnel costs.
func (b *book) openVPNWords() string {
	n := b.network("core-limited")
	if n == nil {
		return ""
	}
	base := published.Setting{Network: n.name, DelayMS: defaultDelayMS}
	ours, _, _ := n.ratio(base, func(value func(string) (float64, bool)) *float64 { return pctOf(value, "tcp-openvpn", "tcp-detour") })
	theirs := pctOf(b.publishedMean(base), "tcp-openvpn", "tcp-detour")
	if ours == nil || theirs == nil {
		return ""
	}
	version := "today's OpenVPN"
	if said := strings.Fields(b.suite.Environment.Programs["openvpn"]); len(said) >= 2 {
		version = strings.Join(said[:2], " ") // then come the machine and its features
	}
	text := fmt.Sprintf("OpenVPN. Plain TCP through its tunnel carries %.2f %% of what it does through a mapped port here (%s), and %.2f %% in "+
		"2017, when the tunnel took 91 bytes of each segment's 1428 (thesis, 5.1.4): it encrypted and signed by mistake, as its author "+
		"found later (data/README.md of github.com/brenns10/thesis).", *ours, version, *theirs)
	wireguard, _, _ := n.ratio(base, func(value func(string) (float64, bool)) *float64 { return pctOf(value, "tcp-wireguard", "tcp-detour") })
	if wireguard != nil {
		text += fmt.Sprintf(" Through WireGuard, which encrypts, it is %.2f %%.", *wireguard)
	}
	return text
}

// apart is how many percentage points a detour's part of the bytes differs from the
// published if it is worth a word.
const apart = 10.0

// shareWords is about Table 2.
func (b *book) shareWords() string {
	cells, far, most, where := 0, 0, 0.0, ""
	for _, n := range b.networks {
		for _, r := range n.rows {
			ours, measured := detourPct(r.BytesPerPath)
			theirs, given := detourPct(r.PublishedBytesPerPath)
			if !measured || !given || r.Congestion != n.congestions[0] {
				continue
			}
			cells++
			by := math.Abs(ours - theirs)
			if by > apart {
				far++
			}
			if by > most {
				most, where = by, fmt.Sprintf("%s, %s, %s: %.0f %% here, %.0f %% then", n.name, title(n.variant(r.Variant)), r.Procedure, ours, theirs)
			}
		}
	}
	if cells == 0 {
		return ""
	}
	return fmt.Sprintf("Table 2. In %d of %s the detour's part of the bytes differs by more than %.0f percentage points from that of 2017 (most in %s). "+
		"Then it was that of a single trial, with LIA, which takes less of a path where it loses more; ours are medians over the runs, where each subflow has %s to itself. "+
		"Where both share a bottleneck each takes what its round trip and its luck with losses give it. How much is due to each of these was not found out.",
		far, counted(cells, "cell", "cells"), apart, where, strings.ToUpper(b.networks[0].congestions[0]))
}

// detourPct is the part of the bytes that did not take the direct path.
func detourPct(perPath map[string]float64) (pct float64, ok bool) {
	all := 0.0
	for _, bytes := range perPath {
		all += bytes
	}
	if all == 0 {
		return 0, false
	}
	return 100 * (all - perPath["direct"]) / all, true
}

func methodWords() string {
	return "Method. As in 2017, iperf3 sends for 10 s; the first second does not count, nor what comes after the tenth. Ours is what the " +
		"receiving iperf3 counted. A program gets what came after a lost packet only with that packet: what a loss in the omitted second " +
		"holds up counts after all, and gives some runs more than the links carry: plain TCP 1 or 2 %, two paths under loss more. Steady is " +
		"what was carried from the fourth second that counts on, where there is less of that. The published numbers are means; here too Table 1 has means, while plots, targets and comparisons " +
		"use medians, which one run gone wrong does not move. With two subflows there is another such gift: what has come on one of them and waits for the other when the count begins."
}

// farthest lists the cells whose means differ most from the published.
func (b *book) farthest() table {
	var rows []Row
	for _, n := range b.networks {
		for _, r := range n.rows {
			if r.Ratio != nil && r.Congestion == n.congestions[0] && (*r.Ratio > 1+noticeable || *r.Ratio < 1-noticeable) {
				rows = append(rows, r)
			}
		}
	}
	slices.SortStableFunc(rows, func(x, y Row) int { return cmp.Compare(*x.Ratio, *y.Ratio) })
	t := table{
		Title: fmt.Sprintf("All cells of Table 1 that differ by more than %.0f %%", 100*noticeable), Words: 1,
		Note: "From the lowest ratio to the highest. What is not explained here or above has no explanation yet.",
		Head: []string{"where, and known cause", "ours", "2017", "ratio"},
	}
	for _, r := range rows {
		t.Rows = append(t.Rows, []entry{
			{Text: r.Procedure, Below: []string{r.Network + ", " + title(b.network(r.Network).variant(r.Variant)), cause(r)}},
			{Text: meanSD(*r.Mean, *r.SD)}, {Text: meanSD(*r.PublishedMean, *r.PublishedSD)}, {Text: fmt.Sprintf("%.3f", *r.Ratio)},
		})
	}
	return t
}

// encrypted is the most that a cell is of one of 2017 for what OpenVPN then added to packets: 91 bytes
// of 1428 (thesis, 5.1.4), of which today's adds some too.
const encrypted = 1 + 91.0/1428

// cause is why a cell differs, if that is known from what the cell is.
func cause(r Row) string {
	lossy := r.LossPct != nil && *r.LossPct > 0
	openVPN := strings.HasSuffix(r.Procedure, "openvpn")
	switch {
	case openVPN && *r.Ratio > 1 && *r.Ratio <= encrypted:
		return "OpenVPN encrypted and signed in 2017"
	case lossy && *r.LossPct < wholePct:
		return "most likely no loss in 2017"
	case lossy && *r.PublishedCongestion != r.Congestion:
		return fmt.Sprintf("losses of two segments at a time in 2017, and %s, not %s", strings.ToUpper(*r.PublishedCongestion), strings.ToUpper(r.Congestion))
	case lossy:
		return "losses of two segments at a time in 2017"
	case r.Steady != nil && *r.Mean > credit**r.Steady:
		return "what a loss in the omitted second held up is counted"
	default:
		return "–"
	}
}
