package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/analyse/track"
)

// Event is something that happened on a connection, in seconds after its first packet.
type Event struct {
	At   float64
	Text string
}

// maxEvents bounds the events of a connection that are listed.
const maxEvents = 100

// events lists what happened on a connection, in the order of time, and the number of events that are left out.
func events(r *track.Record) (list []Event, more int) {
	add := func(at float64, format string, args ...any) {
		list = append(list, Event{at, fmt.Sprintf(format, args...)})
	}
	for i := range r.Subflows {
		s := &r.Subflows[i]
		if s.State == "refused" || s.State == "unanswered" || s.State == "half-open" {
			add(s.Began, "subflow %d did not come up: %s", i, s.State)
			continue
		}
		if !s.Initial && s.JoinDelay != nil {
			add(s.Began, "subflow %d joined, opened by the %s", i, s.OpenedBy)
		}
		if s.Ended != nil {
			how := "closed"
			if s.State == "reset" {
				how = "reset"
			}
			add(*s.Ended, "subflow %d %s by the %s%s", i, how, s.EndedBy, resetReason(s))
		}
	}
	for i := range r.Signals {
		add(r.Signals[i].At, "%s", signalWords(&r.Signals[i]))
	}
	for _, h := range r.Handovers {
		add(h.At, "handover from subflow %d (%s) to subflow %d, %s, without new data for %s", h.From, goneWords[h.Why], h.To, h.Kind, span(h.Gap))
	}
	if r.Fallback != nil {
		add(r.Fallback.At, "fallback to plain TCP: %s", causeWords[r.Fallback.Cause])
	}
	slices.SortStableFunc(list, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	if n := len(list); n > maxEvents {
		return list[:maxEvents], n - maxEvents
	}
	return list, 0
}

// goneWords describe why a subflow is left.
var goneWords = map[string]string{"fin": "closed", "reset": "reset", "removed": "address removed", "silent": "no answer any more"}

func resetReason(s *track.Subflow) string {
	if s.Reset == nil {
		return ""
	}
	return fmt.Sprintf(", reason %d", *s.Reset)
}

func signalWords(g *track.Signal) string {
	var ids []string
	for _, id := range g.IDs {
		ids = append(ids, fmt.Sprint(id))
	}
	text := fmt.Sprintf("%s of the %s: ", g.Kind, g.From)
	switch {
	case g.Kind == track.Priority && g.Subflow != nil:
		text += fmt.Sprintf("subflow %d is %s", *g.Subflow, map[bool]string{true: "a backup", false: "no backup any more"}[g.Backup])
	case g.Address != nil:
		text += fmt.Sprintf("%v, ID %s", *g.Address, strings.Join(ids, ", "))
	default:
		text += "ID " + strings.Join(ids, ", ")
	}
	if g.Repeats > 0 {
		text += ", sent again " + times(uint64(g.Repeats))
	}
	if g.Echo != nil {
		text += ", echoed after " + span(*g.Echo)
	}
	switch {
	case g.Kind == track.AddAddr && g.Followed > 0:
		text += ", followed by " + plural(uint64(g.Followed), "join")
	case g.Kind == track.RemoveAddr && g.Followed > 0:
		text += ", followed by the end of " + plural(uint64(g.Followed), "subflow")
	case g.Kind == track.Priority:
		text += ", " + size(float64(g.Data)) + " on it afterwards"
	}
	if g.HMAC == "wrong" {
		text += ", with a wrong HMAC"
	}
	return text
}

// facts describes in sentences what a connection's subflows have together.
func facts(r *track.Record) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if r.RTTSpread != nil {
		add("Round trips: best %s, second-best %s, difference to the slowest %s.", span(*r.BestRTT), span(*r.SecondRTT), span(*r.RTTSpread))
	}
	if r.ViaInitial != nil {
		add("%s of the data on the initial subflow.", fraction(*r.ViaInitial))
	}
	if r.Retransmitted > 0 {
		add("Retransmitted: %s.", size(float64(r.Retransmitted)))
	}
	if r.Reinjections > 0 {
		add("Reinjected: %s in %s%s.", size(float64(r.Reinjected)), plural(r.Reinjections, "segment"), afterWords(r.ReinjectedAfter))
	}
	if r.WindowStalls > 0 {
		add("The receive window stopped the sender %s, for %s in all.", times(uint64(r.WindowStalls)), span(r.WindowStalled))
	}
	if r.Blockages > 0 {
		add("Data waited behind a hole %s, for %s in all.", times(uint64(r.Blockages)), span(r.Blocked))
	}
	if r.MaxFlight > 0 {
		add("Most data in flight: %s.", size(float64(r.MaxFlight)))
	}
	if r.Idle > 0 {
		add("Idle: pauses of a second and more, %s in all.", span(r.Idle))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Anomalies)) {
		add("Note: %s: %s.", anomalyWords[name], number(r.Anomalies[name]))
	}
	return lines
}
