package page

import (
	"fmt"
	"math"
)

// lossVariant is the network with 1 % loss on the direct path.
const lossVariant = "loss-1"

// gains says in a few sentences what dcol brings and where it costs, for a reader
// who reads no further. All are from medians with the first congestion control; what
// has no runs is left out.
func (b *book) gains() []string {
	downloads := b.pathGains("download-core-limited", "download-symmetric")
	if downloads != "" {
		downloads = joined("Downloads.", downloads)
	}
	var paragraphs []string
	for _, said := range []string{
		b.pathGains("core-limited", "symmetric"),
		downloads,
		joined(b.sweepGain("sweep"), b.outageGain("direct-dies"), b.sizeGain("flow-sizes")),
	} {
		if said != "" {
			paragraphs = append(paragraphs, said)
		}
	}
	if len(paragraphs) == 0 {
		return nil
	}
	paragraphs[0] = joined("With dcol a program's TCP connection uses several paths at once.", paragraphs[0])
	if worst := joined(b.worstPlace("dcol"), b.latest()); worst != "" {
		paragraphs = append(paragraphs, worst)
	}
	return paragraphs
}

// joined puts a space between the sentences that say something.
func joined(sentences ...string) string {
	said := ""
	for _, s := range sentences {
		if s != "" && said != "" {
			said += " "
		}
		said += s
	}
	return said
}

// pathGains is about two paths that can be summed, as they are and with loss on the
// direct one, and about two that share a bottleneck.
func (b *book) pathGains(apart, shared string) string {
	var sum, loss, cost string
	if got, tcp, ok := b.besideTCP(apart, baseVariant); ok {
		sum = fmt.Sprintf("On two paths dcol carries %.2f Mbit/s, %.2f times plain TCP's %.2f on the direct path.", got, got/tcp, tcp)
		n := b.network(apart)
		if detour, ok := n.median(cell{baseVariant, "tcp-detour", n.congestions[0]}); ok {
			sum = fmt.Sprintf("On two paths on which plain TCP carries %.2f and %.2f Mbit/s, dcol carries %.2f Mbit/s: %.1f %% of their sum, and %.2f times "+
				"the direct path's.", tcp, detour, got, 100*got/(tcp+detour), got/tcp)
		}
	}
	if got, tcp, ok := b.besideTCP(apart, lossVariant); ok {
		loss = fmt.Sprintf("With 1 %% loss on the direct path dcol carries %.2f Mbit/s, and plain TCP %.2f.", got, tcp)
	}
	if got, tcp, ok := b.besideTCP(shared, baseVariant); ok {
		cost = fmt.Sprintf("Where both paths share one bottleneck, so that a detour cannot help, dcol carries %.2f Mbit/s, %s plain TCP.", got, moreOrLess(got/tcp))
	}
	return joined(sum, loss, cost)
}

// besideTCP is what dcol carries in a variant, and what plain TCP does on the direct
// path.
func (b *book) besideTCP(network, variant string) (dcol, tcp float64, ok bool) {
	n := b.network(network)
	if n == nil {
		return 0, 0, false
	}
	dcol, measured := n.median(cell{variant, "dcol", n.congestions[0]})
	tcp, compared := n.median(cell{variant, "tcp", n.congestions[0]})
	return dcol, tcp, measured && compared && tcp > 0
}

// moreOrLess says in words how far a ratio is from 1.
func moreOrLess(ratio float64) string {
	switch pct := fmt.Sprintf("%.1f %%", 100*math.Abs(ratio-1)); {
	case pct == "0.0 %":
		return "as much as"
	case ratio < 1:
		return pct + " less than"
	default:
		return pct + " more than"
	}
}

// sweepGain is about detours of all kinds.
func (b *book) sweepGain(network string) string {
	n := b.network(network)
	if n == nil {
		return ""
	}
	axes := n.axes()
	if len(axes) != 2 {
		return ""
	}
	least, most, places := math.Inf(1), 0.0, 0
	for _, x := range axes[0].values {
		for _, y := range axes[1].values {
			gain := n.gain("dcol", []string{"tcp"}, map[string]float64{axes[0].name: x, axes[1].name: y})
			if !math.IsNaN(gain) {
				least, most, places = min(least, gain), max(most, gain), places+1
			}
		}
	}
	if places == 0 {
		return ""
	}
	return fmt.Sprintf("With %s, of %s and %s, it carries %.2f to %.2f times what plain TCP does on the direct path.",
		counted(places, "kind of detour", "kinds of detours"), axes[0].span(), axes[1].span(), least, most)
}

// span is an axis from end to end.
func (a axis) span() string {
	labels := a.labels()
	return fmt.Sprintf("%s to %s %s", labels[0], labels[len(labels)-1], a.unit)
}

// outageGain is about a direct path that is away for a while.
func (b *book) outageGain(network string) string {
	n := b.network(network)
	if n == nil {
		return ""
	}
	got, measured := n.row(cell{baseVariant, "dcol", n.congestions[0]})
	tcp, compared := n.row(cell{baseVariant, "tcp", n.congestions[0]})
	if !measured || !compared {
		return ""
	}
	return fmt.Sprintf("When the direct path dies for a while, plain TCP on it stands still for %s, dcol for %s at the longest.",
		duration(tcp.LongestStallMS), duration(got.LongestStallMS))
}

// sizeGain is about how long files take.
func (b *book) sizeGain(network string) string {
	n := b.network(network)
	if n == nil {
		return ""
	}
	axes := n.axes()
	if len(axes) != 1 || !n.hasLatency() {
		return ""
	}
	x, took := axes[0], quantityOf(n).value
	least, most, quickest, slowest := math.Inf(1), 0.0, "", ""
	for _, size := range x.values {
		got, measured := n.along(x, size, "dcol", took)
		tcp, compared := n.along(x, size, "tcp", took)
		if !measured || !compared {
			continue
		}
		if got/tcp < least {
			least, quickest = got/tcp, x.tick(size)
		}
		if got/tcp > most {
			most, slowest = got/tcp, x.tick(size)
		}
	}
	if quickest == slowest {
		return "" // one size or none
	}
	return fmt.Sprintf("A file takes between %.2f (%s) and %.2f (%s) of the time that it takes with plain TCP.", least, quickest, most, slowest)
}

// latest is where a detour makes messages and requests late.
func (b *book) latest() string {
	_, late, ratio, worst := b.latePlaces()
	if late == 0 {
		return ""
	}
	return fmt.Sprintf("Messages and requests can be late: at worst (%s) the 99th percentile is %.1f times that of plain TCP.", worst, ratio)
}

// worstPlace is where a procedure does worst beside plain TCP.
func (b *book) worstPlace(procedure string) string {
	for _, t := range b.worst() {
		if t.Procedure == procedure && t.Measured != nil {
			return fmt.Sprintf("At worst (%s) %s carries %s plain TCP on the direct path.", t.Where, procedure, moreOrLess(*t.Measured/100))
		}
	}
	return ""
}
