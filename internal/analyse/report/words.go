package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/analyse"
	"github.com/detour-collective/dcol/internal/analyse/track"
)

// causeWords explains the causes of fallbacks.
var causeWords = map[string]string{
	track.CauseSYNACK:   "no MP_CAPABLE in the SYN+ACK: the server has no MPTCP, or a middlebox removes the option",
	track.CauseSYN:      "the client repeated its SYN without MP_CAPABLE: SYNs with the option got no answer",
	track.CauseACK:      "no MP_CAPABLE in the third ACK, nor any MPTCP option of the client after it",
	track.CauseRemoved:  "data without mappings: a middlebox removed the options",
	track.CauseChecksum: "MP_FAIL after a wrong checksum: a middlebox changed the data",
	track.CauseFail:     "MP_FAIL on a connection without checksums: mappings did not fit the data",
	track.CauseInfinite: "an infinite mapping without MP_FAIL",
}

var endWords = map[string]string{
	track.EndDataFIN: "DATA_FIN", track.EndFastClose: "MP_FASTCLOSE", track.EndReset: "resets", track.EndFIN: "FIN without DATA_FIN",
	track.EndIdle: "inactivity", track.EndEvicted: "the limit of connections", track.EndCapture: "the end of the capture",
}

var anomalyWords = map[string]string{
	"duplicated-packets": "packets that the capture has twice", "wrong-hmac": "wrong HMACs", "unknown-token": "joins with tokens of no known connection",
	"malformed-option": "malformed MPTCP options", "options-cut": "packets whose options were cut off by the snap length",
	"not-captured": "acknowledgements of data that the capture lacks", "conflicting-keys": "keys that changed", "data-without-mapping": "segments of data without mapping",
}

// Line is a sentence of the summary, with the corresponding result of the thesis of 2019.
type Line struct{ Text, Thesis string }

// Words returns the summary as sentences.
func (t *Totals) Words(c analyse.Counts) (lines []Line) {
	add := func(thesis, format string, args ...any) {
		lines = append(lines, Line{fmt.Sprintf(format, args...), thesis})
	}
	if c.Packets == 0 {
		add("", "The capture has no packets.")
		return append(lines, t.problems(c)...)
	}
	add("", "%s packets in %s: %s of MPTCP connections, %s of other TCP connections.",
		number(c.Packets), span(c.Last.Sub(c.First).Seconds()), number(c.MPTCP), number(c.PlainTCP))
	if t.Connections == 0 {
		add("", "No MPTCP connection was found.")
		return append(lines, t.problems(c)...)
	}
	add("", "%s%s, %s of data, %s from %s.", plural(t.Connections, "MPTCP connection"), t.versions(), size(float64(t.Bytes)),
		plural(t.AllSubflows, "subflow"), t.clientsWords())
	add("80 (86 %), 21 (5.3 %), 5001 (1.7 %)", "Ports of servers: %s.", t.portWords())
	t.structure(add)
	t.timing(add)
	t.distribution(add)
	t.repetitions(add)
	t.eventWords(add)
	return append(lines, t.problems(c)...)
}

func (t *Totals) versions() string {
	var parts []string
	for _, v := range slices.Sorted(maps.Keys(t.Versions)) {
		if v == "unknown" {
			parts = append(parts, number(t.Versions[v])+" of unknown version")
		} else {
			parts = append(parts, number(t.Versions[v])+" of version "+v)
		}
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func (t *Totals) clientsWords() string {
	addresses, prefixes := t.Clients()
	family := "over IPv4"
	switch {
	case t.IPv4 == 0:
		family = "over IPv6"
	case t.IPv6 > 0:
		family = number(t.IPv6) + " over IPv6"
	}
	return fmt.Sprintf("%s in %s, %s", plural(uint64(addresses), "client address"), plural(uint64(prefixes), "prefix"), family)
}

// portWords lists the ports with most connections, and the share of each.
func (t *Totals) portWords() string {
	const named = 3
	var parts []string
	rest := t.Connections
	for i, port := range t.commonPorts() {
		if i == named {
			parts = append(parts, "others ("+share(rest, t.Connections)+")")
			break
		}
		n := t.Ports[port].Connections
		rest -= n
		parts = append(parts, fmt.Sprintf("%d (%s)", port, share(n, t.Connections)))
	}
	return strings.Join(parts, ", ")
}

// adder adds a sentence to the summary, with the corresponding result of the thesis.
type adder = func(thesis, format string, args ...any)

func (t *Totals) structure(add adder) {
	if t.Midway > 0 {
		add("", "%s began before the capture.", plural(t.Midway, "connection"))
	}
	var fell uint64
	for _, n := range t.Fallbacks {
		fell += n
	}
	if fell == 0 {
		add("125 of 190,451 fell back", "No connection fell back to plain TCP.")
	} else {
		add("125 of 190,451 fell back, from 28 addresses", "%s of %s fell back to plain TCP, from %s:",
			number(fell), number(t.Connections), plural(uint64(len(t.fallen)), "client address"))
		for _, cause := range most(t.Fallbacks) {
			add("", "    %s: %s", number(t.Fallbacks[cause]), causeWords[cause])
		}
	}
	var ends []string
	for _, end := range most(t.Ends) {
		ends = append(ends, fmt.Sprintf("%s by %s", number(t.Ends[end]), endWords[end]))
	}
	add("", "Ends: %s.", strings.Join(ends, ", "))
	one, two := t.Subflows[1], t.Subflows[2]
	add("61.6, 23.3 and 15.1 %; at most 68", "Subflows: one in %s, two in %s, more in %s of the connections; at most %d.",
		share(one, t.Connections), share(two, t.Connections), share(t.Connections-one-two, t.Connections), t.MaxSubflows)
	if full, ports := t.Shapes["fullmesh"], t.Shapes["ndiffports"]; full+ports > 0 {
		add("49 and 51 %", "Of those with several, %s used different addresses, like fullmesh, and %s one pair of addresses, like ndiffports.",
			share(full, full+ports), share(ports, full+ports))
	}
	if bad := t.States["refused"] + t.States["unanswered"]; bad > 0 {
		add("", "%s did not come up: %s refused, %s unanswered.", plural(bad, "subflow"), number(t.States["refused"]), number(t.States["unanswered"]))
	}
}

func (t *Totals) timing(add adder) {
	if q := t.Duration.Quantiles(); q != nil {
		add("most 1 to 100 s", "Durations: median %s, 90 %% within %s, at most %s.", span(q.P50), span(q.P90), span(q.Max))
	}
	if q := t.Size.Quantiles(); q != nil {
		add("12 % of 2 bytes", "Sizes: median %s, 90 %% up to %s; %s of 2 bytes, which are the DATA_FINs.", size(q.P50), size(q.P90), share(t.Empty, t.Connections))
	}
	if q := t.Goodput.Quantiles(); q != nil {
		add("", "Goodput over the duration: median %s, 90 %% up to %s.", bitRate(q.P50), bitRate(q.P90))
	}
	if q := t.SubflowGoodput.Quantiles(); q != nil {
		add("", "Goodput of subflows while they carried data: median %s, 90 %% up to %s.", bitRate(q.P50), bitRate(q.P90))
	}
	if q := t.MaxFlight.Quantiles(); q != nil {
		add("", "Most data in flight: median %s, 90 %% up to %s, at most %s.", size(q.P50), size(q.P90), size(q.Max))
	}
	if idle := t.Idle.n - t.Idle.zero; idle > 0 {
		add("", "Idle: pauses of a second and more in %s of the connections, %s in all.", share(idle, t.Idle.n), span(t.Idle.sum))
	}
	t.joinWords(add)
	if q := t.SubflowRTT.Quantiles(); q != nil {
		change := ""
		if c := t.RTTChange.Quantiles(); c != nil {
			change = fmt.Sprintf("; while a subflow lasts they change by %s (median), 90 %% by up to %s", span(c.P50), span(c.P90))
		}
		add("", "Round trips of %s: median %s, 90 %% up to %s%s.", plural(q.Count, "subflow"), span(q.P50), span(q.P90), change)
	}
	if q := t.Spread.Quantiles(); q != nil {
		add("22.6 and 12.5 %", "Round trips of a connection's subflows (connections of 100 kB and more): %s are within 10 ms, %s differ by more than a second; median difference %s.",
			share(t.Within10ms, q.Count), share(t.Above1s, q.Count), span(q.P50))
		add("medians near the best one's, with long tails", "The second-best round trip of these: %s.", t.secondBest())
	}
}

func (t *Totals) joinWords(add adder) {
	if q := t.Joins.Quantiles(); q != nil {
		add("86 %, 1.8 % and 0.2 %", "Joins: %s within a second of the connection's begin, %s after more than a minute, %s after more than an hour; median %s, of the first of a connection %s.",
			share(t.JoinsWithin[0], q.Count), share(q.Count-t.JoinsWithin[1], q.Count), share(q.Count-t.JoinsWithin[2], q.Count), span(q.P50), span(t.FirstJoins.Quantile(0.5)))
	}
}

// secondBest lists the medians by classes of the best round trip.
func (t *Totals) secondBest() string {
	var parts []string
	for i, class := range secondBestClasses {
		if q := t.SecondBest[i].Quantiles(); q != nil {
			parts = append(parts, fmt.Sprintf("median %s where the best is %s", span(q.P50), class))
		}
	}
	return strings.Join(parts, ", ")
}

func (t *Totals) distribution(add adder) {
	names := [3]string{"below 50 kB", "of 50 kB to 5 MB", "above 5 MB"}
	thesis := [3]string{"29.6 and 47.5 %", "13.8 and 76.6 %", "6.7 and 65.5 %"}
	for i, c := range t.Initial {
		if c.Connections > 0 {
			add(thesis[i], "Of the %s %s with two subflows, %s used the initial one alone, and %s for more than half.",
				plural(c.Connections, "connection"), names[i], share(c.Alone, c.Connections), share(c.Most, c.Connections))
		}
	}
	if t.Additional > 0 {
		unused := number(t.Unused) + " carried no data" + t.better()
		if t.Unused == 0 {
			unused = "all carried data"
		}
		add("43.2 % had the better one", "Of %s, %s.", plural(t.Additional, "additional subflow"), unused)
	}
	if t.WithUnused > 0 {
		add("75 and 95 %", "Of %s with unused subflows, %s carried less than 1,000 bytes, and %s less than 20 kB.",
			plural(t.WithUnused, "connection"), share(t.UnusedSize[0], t.WithUnused), share(t.UnusedSize[1], t.WithUnused))
	}
}

func (t *Totals) better() string {
	if t.UnusedCompared == 0 {
		return ""
	}
	return fmt.Sprintf("; %s of these had a better round trip than those in use", share(t.UnusedBetter, t.UnusedCompared))
}

func (t *Totals) repetitions(add adder) {
	if t.Several > 0 {
		add("4.1 and 25 %", "Of %s with several subflows and data, %s reinjected data and %s retransmitted some.",
			plural(t.Several, "connection"), share(t.Reinjecting, t.Several), share(t.Retransmitting, t.Several))
	}
	add("0.92 and 1.32 GB of 113", "Reinjected: %s in %s%s. Retransmitted: %s.", size(float64(t.Reinjected)), plural(t.Reinjections, "segment"), afterWords(t.ReinjectedAfter), size(float64(t.Retransmitted)))
	repeats, repeatsEarly := early(t.RepeatAt)
	reinjections, reinjectionsEarly := early(t.ReinjectionAt)
	if repeats > 0 || reinjections > 0 {
		add("more retransmissions at the beginning, reinjections evenly", "In the first tenth of their connection's time: %s of the retransmissions, %s of the reinjections.",
			share(repeatsEarly, repeats), share(reinjectionsEarly, reinjections))
	}
}

// early sums up all counts, and those of the first tenth.
func early(counts [Bins]uint64) (all, first uint64) {
	for i, n := range counts {
		all += n
		if i < Bins/10 {
			first += n
		}
	}
	return all, first
}

// afterWords lists the causes of reinjections.
func afterWords(causes map[string]uint64) string {
	if len(causes) == 0 {
		return ""
	}
	var parts []string
	for _, cause := range most(causes) {
		parts = append(parts, fmt.Sprintf("%s %s", number(causes[cause]), map[string]string{
			"head-of-line": "as the other subflow was quicker", "loss": "after a loss", "timeout": "after a timeout", "subflow-ended": "after the subflow's end",
		}[cause]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func (t *Totals) eventWords(add adder) {
	var handovers uint64
	for _, n := range t.Handovers {
		handovers += n
	}
	if handovers > 0 {
		add("", "%s: %s to a subflow that was made after, %s to one that was there; median gap %s.", plural(handovers, "handover"),
			number(t.Handovers["break-before-make"]), number(t.Handovers["make-before-break"]), span(t.HandoverGaps.Quantile(0.5)))
	}
	for _, kind := range slices.Sorted(maps.Keys(t.Signals)) {
		s := t.Signals[kind]
		switch kind {
		case track.AddAddr:
			echo := ""
			if q := t.EchoDelay.Quantiles(); q != nil {
				echo = " after " + span(q.P50) + " (median)"
			}
			add("", "ADD_ADDR: %s%s, %s echoed%s, %s followed by a join to the address.",
				number(s.Count), s.copies(), number(s.Echoed), echo, number(s.Followed))
		case track.RemoveAddr:
			add("", "REMOVE_ADDR: %s%s, %s followed by the end of a subflow.", number(s.Count), s.copies(), number(s.Followed))
		case track.Priority:
			add("", "MP_PRIO: %s, after %s of which the subflow carried data.", number(s.Count), number(s.Followed))
		}
	}
	if t.Stalls > 0 {
		add("", "The receive window stopped the sender %s in %s, for %s in all.", times(t.Stalls), plural(t.StalledConns, "connection"), span(t.Stalled))
	}
	if t.Blockages > 0 {
		add("", "Data waited behind a hole %s in %s, for %s in all.", times(t.Blockages), plural(t.BlockedConns, "connection"), span(t.Blocked))
	}
}

func (s Signals) copies() string {
	switch s.Repeated {
	case 0:
		return ""
	case 1:
		return " and a repetition"
	}
	return " and " + plural(s.Repeated, "repetition")
}

func (t *Totals) problems(c analyse.Counts) (lines []Line) {
	add := func(format string, args ...any) { lines = append(lines, Line{Text: fmt.Sprintf(format, args...)}) }
	for _, name := range slices.Sorted(maps.Keys(t.Anomalies)) {
		add("Note: %s: %s.", anomalyWords[name], number(t.Anomalies[name]))
	}
	for _, n := range []struct {
		count uint64
		text  string
	}{
		{c.ClockSteps, "backward steps of the clock, corrected in the times after them"}, {c.Disordered, "packets out of order in the capture"},
		{c.Late, "packets after their connection had ended, or that only kept one alive"}, {c.LinkLayers, "packets of a link layer that dcol does not know"},
		{c.Evicted, "connections ended early, because more were alive than --max-connections"},
	} {
		if n.count > 0 {
			add("Note: %s: %s.", n.text, number(n.count))
		}
	}
	for _, p := range c.Problems {
		add("Note: %s.", p)
	}
	return lines
}

// WriteWords prints the summary, with the thesis' figures beside it.
func (t *Totals) WriteWords(w io.Writer, c analyse.Counts) error {
	compared := false
	for _, line := range t.Words(c) {
		text := line.Text
		if line.Thesis != "" {
			text, compared = text+"  [2019: "+line.Thesis+"]", true
		}
		if _, err := fmt.Fprintln(w, text); err != nil {
			return err
		}
	}
	if !compared {
		return nil
	}
	_, err := fmt.Fprintln(w, "[2019: …] has the findings of Tran's thesis at multipath-tcp.org in 2014 and 2015, for comparison.")
	return err
}
