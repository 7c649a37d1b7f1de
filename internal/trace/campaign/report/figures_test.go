package report

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/present"
)

// tenHops is a trace of a way of ten hops and a destination behind; whole are the hops that quote whole packets.
func tenHops(name string, whole ...int) *campaign.Record {
	t := &present.Trace{Schema: present.Schema, Distance: 10}
	for d := 1; d < 10; d++ {
		h := present.Hop{Distance: d, Probes: 1, Quotes: []present.Quote{{From: "192.0.2.1"}}}
		for _, w := range whole {
			h.Quotes[0].Full = h.Quotes[0].Full || w == d
		}
		t.Hops = append(t.Hops, h)
	}
	return &campaign.Record{Schema: campaign.Schema, Name: name, Trace: t}
}

// The figures beside the thesis's are of the same kind, with the same regions.
func TestFullQuotesByRegion(t *testing.T) {
	m := NewSummer()
	m.Add(tenHops("a", 1, 3, 4, 6, 7))
	m.Add(tenHops("b", 4, 5, 6, 7, 9))
	m.Add(tenHops("c"))
	changed := tenHops("d")
	for _, by := range []int{3, 6, 7} {
		changed.Trace.Findings = append(changed.Trace.Findings, present.Finding{
			Change: present.Change{Field: string(compare.MSS), Kind: []string{3: "changed", 6: "removed", 7: "added"}[by]}, After: by - 1, By: by,
		})
	}
	m.Add(changed)
	s := m.Summary(0)
	for _, test := range []struct {
		name          string
		got           func(from, to int) (float64, bool)
		near, mid, to float64
	}{
		{"placed", s.FullPlaced, 0.2, 0.5, 0.3},
		{"share", s.FullShare, 2.0 / 12, 5.0 / 12, 3.0 / 12},
	} {
		for i, want := range []float64{test.near, test.mid, test.to} {
			bounds := []int{0, nearEnd, coreEnd, tenths}
			if got, ok := test.got(bounds[i], bounds[i+1]); !ok || got != want {
				t.Errorf("%s in region %d: %v, want %v", test.name, i, got, want)
			}
		}
	}
	if got := s.PathsWithFull(); got != 0.5 {
		t.Errorf("paths with a whole quote: %v", got)
	}
	for i, c := range []string{"MSS changed", "MSS removed", "MSS added"} {
		bounds := []int{0, nearEnd, coreEnd, tenths}
		for _, change := range s.Changes {
			if change.What == c && change.Between(bounds[i], bounds[i+1]) != 1 {
				t.Errorf("%s is not in region %d: %v", c, i, change.ByTenth)
			}
		}
	}
	var text, page strings.Builder
	if err := s.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := s.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a router quotes everything on 50 % of paths", "routers that quote everything 20 % 50 % 30 %"} {
		if got := strings.Join(strings.Fields(strings.ReplaceAll(text.String(), "\u00a0", " ")), " "); !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if !strings.Contains(page.String(), "<td>where they are</td><td>20") {
		t.Error("the page has no distribution")
	}
}

// A destination answers by a packet of its own, or by an ICMP error. One of a router is no answer.
func TestAnswered(t *testing.T) {
	m := NewSummer()
	byPacket, byError, not := tenHops("a"), tenHops("b"), tenHops("c")
	byPacket.Trace.Answer = &present.Answer{Text: "SYN+ACK"}
	byError.Trace.Destination = "203.0.113.1"
	byError.Trace.Hops = append(byError.Trace.Hops, present.Hop{Distance: 10, Quotes: []present.Quote{{From: "203.0.113.1", Type: 3, Code: 3}}})
	for _, r := range []*campaign.Record{byPacket, byError, not} {
		m.Add(r)
	}
	if s := m.Summary(0); s.Answered != 2 || s.Traced != 3 {
		t.Errorf("%d of %d answered", s.Answered, s.Traced)
	}
}
