package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/analyse/track"
)

// WriteConnection prints one connection: its subflows, what they have together, and its events.
func WriteConnection(w io.Writer, r *track.Record) error {
	var b strings.Builder
	version := "?"
	if r.Version != nil {
		version = fmt.Sprint(*r.Version)
	}
	state := "ended by " + endWords[r.End]
	if r.Fallback != nil {
		state += "; fell back after " + span(r.Fallback.At) + ": " + causeWords[r.Fallback.Cause]
	}
	fmt.Fprintf(&b, "\nconnection %d: version %s, began %s, %s, %s up, %s down, %s\n", r.Number, version, r.Began.Format(time.RFC3339Nano),
		span(r.Duration), size(float64(r.FromClient)), size(float64(r.FromServer)), state)
	if len(r.Tokens) > 0 {
		fmt.Fprintf(&b, "  tokens %s\n", tokenWords(r.Tokens, ", "))
	}
	for i, s := range r.Subflows {
		rtt := "unknown"
		if s.RTT != nil {
			rtt = span(*s.RTT)
		}
		fmt.Fprintf(&b, "  %d  %v to %v, %s, %s up, %s down, RTT %s\n", i, s.Client, s.Server, s.State,
			size(float64(s.FromClient.NewData)), size(float64(s.FromServer.NewData)), rtt)
	}
	for _, fact := range facts(r) {
		fmt.Fprintf(&b, "  %s\n", fact)
	}
	list, more := events(r)
	for _, e := range list {
		fmt.Fprintf(&b, "  after %s: %s\n", span(e.At), e.Text)
	}
	if more > 0 {
		fmt.Fprintf(&b, "  and %s more\n", plural(uint64(more), "event"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// tokenWords lists tokens as --token takes them.
func tokenWords(tokens []uint32, between string) string {
	var parts []string
	for _, t := range tokens {
		parts = append(parts, fmt.Sprintf("0x%08x", t))
	}
	return strings.Join(parts, between)
}
