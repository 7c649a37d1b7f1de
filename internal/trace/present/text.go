package present

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// Text writes a trace for people: the path with its changes marked, a description of each change, and notes.
func Text(out io.Writer, name string, p *trace.Path, sent *packet.Packet) error {
	w := bufio.NewWriter(out)
	target := p.Destination.String()
	if name != "" && name != target {
		target = fmt.Sprintf("%s (%s)", name, target)
	}
	paragraph(w, "", fmt.Sprintf("Trace to %s: %s.", target, ProbeText(sent)))
	fmt.Fprintln(w)
	drawing(w, p)
	return w.Flush()
}

// drawing writes the path with its changes marked, a description of each change, and notes.
func drawing(w io.Writer, p *trace.Path) {
	groups := group(p.Findings)
	drawPath(w, p, groups)
	fmt.Fprintln(w)
	for i, g := range groups {
		paragraph(w, fmt.Sprintf("%c  ", letter(i)), capital(Where(g[0]))+":")
		for _, f := range g {
			paragraph(w, "     ", What(f))
		}
		if follow := consequences(g); len(follow) > 0 {
			paragraph(w, "     ", "consequences: "+strings.Join(follow, ", "))
		}
	}
	if len(groups) == 0 {
		paragraph(w, "", nothing(p))
	}
	for _, note := range Notes(p) {
		paragraph(w, "Note: ", note)
	}
}

// group puts findings of one interval together.
func group(findings []compare.Finding) (groups [][]compare.Finding) {
next:
	for _, f := range findings {
		for i, g := range groups {
			if g[0].After == f.After && g[0].By == f.By {
				groups[i] = append(g, f)
				continue next
			}
		}
		groups = append(groups, []compare.Finding{f})
	}
	return groups
}

// consequences names the fields that changed because others did, such as checksums.
func consequences(group []compare.Finding) (names []string) {
	for _, f := range group {
		for _, c := range f.Consequences {
			if name := Label(c); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// letter marks a group on the path.
func letter(i int) rune {
	if i >= 26 {
		return '+'
	}
	return rune('A' + i)
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func drawPath(w io.Writer, p *trace.Path, groups [][]compare.Finding) {
	marks := func(distance int) string {
		var b strings.Builder
		for i, g := range groups {
			if distance > g[0].After && distance <= g[0].By {
				b.WriteRune(letter(i))
			}
		}
		return b.String()
	}
	width := 3
	for _, h := range p.Hops {
		width = max(width, len(marks(h.Distance))+1)
	}
	room := len("no answer")
	for _, h := range p.Hops {
		if from, ok := h.From(); ok {
			room = max(room, len(from.String()))
		}
	}
	room = max(room, len(p.Destination.String()))
	fmt.Fprintf(w, "%-*s%3s  %-*s  %10s  %s\n", width, "", "hop", room, "address", "round trip", "quotes")
	for _, h := range p.Hops {
		address, rtt, quotes := "no answer", "", ""
		if len(h.Quotes) > 0 {
			q := h.Quotes[0]
			address, rtt, quotes = q.From.String(), milliseconds(q.RTT), quoted(q)
		} else if h.Distance == p.Distance && p.Answer != nil {
			address, rtt, quotes = p.Destination.String(), milliseconds(p.Answer.RTT), "answers: "+answered(p.Answer.Packet)
		}
		paragraph(w, fmt.Sprintf("%-*s%3d  %-*s  %10s  ", width, marks(h.Distance), h.Distance, room, address, rtt), quotes)
	}
	if p.Answer != nil && !atEnd(p) {
		paragraph(w, fmt.Sprintf("%-*s%3s  %-*s  %10s  ", width, "", "", room, p.Destination, milliseconds(p.Answer.RTT)), "answers: "+answered(p.Answer.Packet))
	}
}

// atEnd reports whether the last hop that is drawn is the destination.
func atEnd(p *trace.Path) bool {
	h, ok := p.Hop(p.Distance)
	return ok && len(h.Quotes) == 0 && p.Distance > 0
}

func milliseconds(d time.Duration) string {
	if d <= 0 {
		return "" // not known
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func quoted(q trace.Quote) string {
	text := fmt.Sprintf("%d bytes", q.Bytes)
	if q.Full {
		text = "everything"
	}
	if len(q.Labels) > 0 {
		var labels []string
		for _, l := range q.Labels {
			labels = append(labels, fmt.Sprint(l))
		}
		text += ", MPLS label " + strings.Join(labels, " ")
	}
	if !q.Exceeded {
		text += fmt.Sprintf(" (%s)", errorText(q))
	}
	return text
}

func errorText(q trace.Quote) string {
	six := q.From.Is6()
	switch {
	case !six && q.Type == packet.Unreachable:
		if name, ok := map[uint8]string{0: "network unreachable", 1: "host unreachable", 2: "protocol unreachable", 3: "port unreachable",
			4: "packet too big", 9: "network prohibited", 10: "host prohibited", 13: "prohibited"}[q.Code]; ok {
			return name
		}
	case six && q.Type == packet.V6Unreachable:
		if name, ok := map[uint8]string{0: "no route", 1: "prohibited", 3: "address unreachable", 4: "port unreachable"}[q.Code]; ok {
			return name
		}
	case six && q.Type == packet.V6PacketTooBig:
		return "packet too big"
	}
	return fmt.Sprintf("ICMP type %d, code %d", q.Type, q.Code)
}

func answered(p *packet.Packet) string {
	if p.TCP != nil {
		return flags(p.TCP.Flags) + withOptions(p.TCP)
	}
	if p.ICMP != nil {
		return "ping"
	}
	return fmt.Sprintf("UDP, %d bytes", len(p.Payload))
}

func nothing(p *trace.Path) string {
	full := p.FullQuotes()
	quoting := 0
	for _, h := range p.Hops {
		if len(h.Quotes) > 0 {
			quoting++
		}
	}
	switch {
	case quoting == 0:
		return "No router answered, so nothing is known of changes on this path."
	case len(full) == 0:
		return "No change is visible. No router quotes whole packets, so only the IP header and ports and sequence numbers were compared."
	}
	return fmt.Sprintf("No change as far as hop %d, the last that quotes whole packets.", full[len(full)-1])
}

// Notes returns sentences on the trace itself, such as contradictions between routers' quotes.
func Notes(p *trace.Path) (notes []string) {
	for _, d := range p.Doubts {
		notes = append(notes, fmt.Sprintf("%s quotes %s as %q instead of %q, and hops behind it do not: the router quotes wrongly, or packets take several paths.",
			hopName(d.Hop, d.From), Label(d.Field), d.Seen.Text, d.Sent.Text))
	}
	for _, h := range p.Hops {
		for _, q := range h.Quotes {
			if len(q.Odd) > 0 {
				notes = append(notes, fmt.Sprintf("%s quotes the IP header wrongly (%s); that changes no packet.", hopName(h.Distance, q.From), strings.Join(q.Odd, ", ")))
				break
			}
		}
	}
	if at, ok := p.Loops(); ok {
		notes = append(notes, fmt.Sprintf("probes go in a circle: %v answers from several distances.", at))
	}
	notes = append(notes, replyNotes(p)...)
	if box := fingerprint(p); box != "" {
		notes = append(notes, box)
	}
	if p.Strays > 0 {
		notes = append(notes, fmt.Sprintf("%d ICMP errors were like answers to the probes and fit none of them: they were forged, or the packets changed beyond recognition.", p.Strays))
	}
	if r := p.Refused; r != nil && r.From != p.Destination {
		notes = append(notes, fmt.Sprintf("%v refuses the packets: %s.", r.From, errorText(*r)))
	}
	switch {
	case p.Answer == nil && p.Refused == nil:
		notes = append(notes, "the destination did not answer.")
	case p.Distance > 0 && !p.Sure:
		notes = append(notes, fmt.Sprintf("the destination's distance was not verified: it is at least %d hops.", p.Distance))
	}
	return notes
}
