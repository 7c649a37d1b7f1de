// Package report sums up the results of a campaign, as text, JSON and a page of HTML: the figures of G. Detal's thesis
// (2014, section 3.4).
package report

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/present"
)

// Schema is the version of a Summary's JSON.
const Schema = "dcol.trace-figures/1"

// tenths divide the way from the source to the destination, as in the thesis.
const tenths = 10

// The regions of the way, in tenths, are those of the thesis's figures 3.5 and 3.12: 1 to 3 are near the source, 4 to 6 are
// the core, and 7 to 10 are near the destination.
const (
	nearEnd = 3
	coreEnd = 6
)

// Summary has the figures.
type Summary struct {
	Schema       string         `json:"schema"`
	From         []string       `json:"from"` // vantage points that have a name
	Destinations int            `json:"destinations"`
	Traced       int            `json:"traced"`
	Answered     int            `json:"answered"` // by the destination
	Failed       map[string]int `json:"failed"`   // by reason
	Skipped      int            `json:"skipped"`
	Damaged      int            `json:"damaged_lines"`
	Sent         int            `json:"packets_sent"`
	// Routers counts the hops that answered, Full the hops that quoted whole packets, by tenths of the way.
	Routers [tenths]int `json:"routers_by_tenth"`
	Full    [tenths]int `json:"full_quotes_by_tenth"`
	// Paths counts traces by the number of routers on them that quote whole packets.
	Paths   map[int]int `json:"paths_by_full_quotes"`
	Changes []Change    `json:"changes"`
	Boxes   []Box       `json:"boxes"`
	// Sides compares several vantage points. It is empty if there is one only.
	Sides []Side `json:"sides,omitempty"`
}

// Change counts the paths with one kind of change.
type Change struct {
	What  string `json:"what"`
	Paths int    `json:"paths"`
	// ByTenth counts the places where it was detected: the first quote that shows it, by tenths of the way.
	ByTenth [tenths]int `json:"detected_by_tenth"`
	// Errors counts intervals by their length in hops: how exact the place is.
	Errors map[int]int `json:"error_hops"`
}

// Box is an interval in which changes were found, of several paths.
type Box struct {
	After string   `json:"after"` // an address; empty: the source
	By    string   `json:"by"`
	Paths int      `json:"paths"`
	What  []string `json:"what"`
}

// Summer takes records one by one, so that memory does not grow with the campaign.
type Summer struct {
	s       Summary
	changes map[string]*Change
	boxes   map[[2]string]*Box
	seen    map[[2]string]bool    // vantage point and name
	towards map[string][]sighting // by name
}

// NewSummer returns an empty one.
func NewSummer() *Summer {
	return &Summer{
		s:       Summary{Schema: Schema, From: []string{}, Failed: map[string]int{}, Paths: map[int]int{}, Changes: []Change{}, Boxes: []Box{}},
		changes: map[string]*Change{}, boxes: map[[2]string]*Box{}, seen: map[[2]string]bool{}, towards: map[string][]sighting{},
	}
}

// Add takes a record. Later ones of the same destination and vantage point do not count.
func (m *Summer) Add(r *campaign.Record) {
	key := [2]string{r.From, r.Name}
	if m.seen[key] {
		return
	}
	m.seen[key] = true
	if r.From != "" && !slices.Contains(m.s.From, r.From) {
		m.s.From = append(m.s.From, r.From)
	}
	m.s.Destinations++
	switch {
	case r.Skipped != "":
		m.s.Skipped++
	case r.Trace == nil:
		m.s.Failed[kindOf(r.Error)]++
	default:
		m.s.Traced++
		m.trace(r)
	}
}

// kindOf shortens an error to its cause, so that equal ones are counted together.
func kindOf(reason string) string {
	for _, known := range []string{"no such host", "no route to", "i/o timeout", "server misbehaving", "no probe could be sent"} {
		if strings.Contains(reason, known) {
			return known
		}
	}
	return cmp.Or(reason, "unknown")
}

func (m *Summer) trace(r *campaign.Record) {
	t := r.Trace
	m.s.Sent += t.Sent
	if answered(t) {
		m.s.Answered++
	}
	length := t.Distance
	for _, h := range t.Hops {
		if len(h.Quotes) > 0 {
			length = max(length, h.Distance)
		}
	}
	full := 0
	for _, h := range t.Hops {
		if len(h.Quotes) == 0 || h.Distance == t.Distance && t.Distance > 0 {
			continue
		}
		place := tenth(h.Distance, length)
		m.s.Routers[place]++
		if h.Quotes[0].Full {
			m.s.Full[place]++
			full++
		}
	}
	m.s.Paths[full]++
	kinds := map[string]bool{}
	for _, f := range t.Findings {
		what := whatOf(f)
		if kinds[what] {
			continue
		}
		kinds[what] = true
		c := m.changes[what]
		if c == nil {
			c = &Change{What: what, Errors: map[int]int{}}
			m.changes[what] = c
		}
		c.Paths++
		c.ByTenth[tenth(f.By, length)]++
		c.Errors[f.By-f.After]++
		place := [2]string{f.AfterAddress, f.ByAddress}
		b := m.boxes[place]
		if b == nil {
			b = &Box{After: f.AfterAddress, By: f.ByAddress}
			m.boxes[place] = b
		}
		if !slices.Contains(b.What, what) {
			b.What = append(b.What, what)
		}
	}
	if len(kinds) > 0 || watched(t, length) {
		m.towards[r.Name] = append(m.towards[r.Name], sighting{r.From, slices.Collect(maps.Keys(kinds))})
	}
	places := map[[2]string]bool{}
	for _, f := range t.Findings {
		places[[2]string{f.AfterAddress, f.ByAddress}] = true
	}
	for place := range places {
		if b := m.boxes[place]; b != nil {
			b.Paths++
		}
	}
}

// answered reports whether the destination answered, by an ICMP error perhaps, as to UDP.
func answered(t *present.Trace) bool {
	return t.Answer != nil || slices.ContainsFunc(t.Hops, func(h present.Hop) bool {
		return slices.ContainsFunc(h.Quotes, func(q present.Quote) bool { return q.From == t.Destination })
	})
}

// tenth returns the place of a hop on the way, 0 to 9.
func tenth(distance, length int) int {
	return max(0, min(tenths-1, (distance*tenths+length-1)/max(length, 1)-1))
}

// whatOf names a finding by its field and kind.
func whatOf(f present.Finding) string {
	label := present.Label(compare.Field(f.Field))
	if f.Kind == string(compare.Changed) {
		return label + " changed"
	}
	return label + " " + f.Kind
}

// mostBoxes bounds the list of intervals.
const mostBoxes = 50

// Summary returns the figures.
func (m *Summer) Summary(damaged int) *Summary {
	s := m.s
	s.Damaged = damaged
	for _, c := range m.changes {
		s.Changes = append(s.Changes, *c)
	}
	slices.SortFunc(s.Changes, func(a, b Change) int { return cmp.Or(b.Paths-a.Paths, strings.Compare(a.What, b.What)) })
	for _, b := range m.boxes {
		slices.Sort(b.What)
		s.Boxes = append(s.Boxes, *b)
	}
	slices.SortFunc(s.Boxes, func(a, b Box) int {
		return cmp.Or(b.Paths-a.Paths, strings.Compare(a.By, b.By), strings.Compare(a.After, b.After))
	})
	s.Boxes = s.Boxes[:min(len(s.Boxes), mostBoxes)]
	s.Sides = sides(m.towards)
	return &s
}

// FullShare returns the share of routers that quote whole packets between two tenths, and whether there are any.
func (s *Summary) FullShare(from, to int) (share float64, ok bool) {
	full, all := sum(s.Full[from:to]), sum(s.Routers[from:to])
	return ratio(full, all), all > 0
}

// FullPlaced returns, of the routers that quote whole packets, the share between two tenths, as in the thesis's figure
// 3.5, and whether there are any.
func (s *Summary) FullPlaced(from, to int) (share float64, ok bool) {
	full := sum(s.Full[:])
	return ratio(sum(s.Full[from:to]), full), full > 0
}

// PathsWithFull returns the share of traces on which a router quotes whole packets, as in the thesis's figure 3.4.
func (s *Summary) PathsWithFull() float64 { return ratio(s.Traced-s.Paths[0], s.Traced) }

// ErrorUpTo returns the share of places that are exact to at most hops hops.
func (c *Change) ErrorUpTo(hops int) float64 {
	within := 0
	for length, n := range c.Errors {
		if length <= hops {
			within += n
		}
	}
	return ratio(within, c.Paths)
}

// Between returns the share of places between two tenths of the way.
func (c *Change) Between(from, to int) float64 { return ratio(sum(c.ByTenth[from:to]), c.Paths) }

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

func ratio(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// reasons lists why traces failed, the most frequent first.
func (s *Summary) reasons() []string {
	return slices.SortedFunc(maps.Keys(s.Failed), func(a, b string) int {
		return cmp.Or(s.Failed[b]-s.Failed[a], strings.Compare(a, b))
	})
}
