package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/present"
)

// traced is a trace of eight hops whose routers quote all, with changes of fields behind the second hop.
func traced(from, name string, fields ...string) *campaign.Record {
	t := &present.Trace{Distance: 8}
	for d := 1; d < 8; d++ {
		t.Hops = append(t.Hops, present.Hop{Distance: d, Quotes: []present.Quote{{Full: true}}})
	}
	for _, f := range fields {
		t.Findings = append(t.Findings, present.Finding{Change: present.Change{Field: f, Kind: "changed"}, After: 2, By: 3})
	}
	return &campaign.Record{Schema: campaign.Schema, From: from, Name: name, Trace: t}
}

// A box near alice is at a source's side; one near a server is at the destination's.
func TestSides(t *testing.T) {
	m := NewSummer()
	for i := range 10 {
		name := fmt.Sprintf("s%d.example", i)
		var near []string // the server's box
		if i < 3 {
			near = []string{"tcp.option.mss"}
		}
		m.Add(traced("alice", name, append(near, "tcp.seq")...))
		m.Add(traced("bob", name, near...))
		m.Add(traced("carol", name, near...))
	}
	// One vantage point alone, and one whose routers quote nothing, show no difference.
	m.Add(traced("alice", "alone.example", "tcp.window"))
	blind := traced("bob", "alone.example")
	blind.Trace.Hops = nil
	m.Add(blind)
	s := m.Summary(0)
	if len(s.Sides) != 2 {
		t.Fatalf("%+v", s.Sides)
	}
	seq, mss := s.Sides[0], s.Sides[1]
	if seq.Destination != 0 || seq.Some != 10 || len(seq.From) != 1 || !seq.From[0].AtSource() || seq.From[0].Name != "alice" {
		t.Errorf("sequence numbers: %+v", seq)
	}
	if mss.Destination != 3 || mss.Some != 0 || len(mss.From) != 3 || mss.From[0].AtSource() {
		t.Errorf("MSS: %+v", mss)
	}
	var text, page strings.Builder
	if err := s.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := s.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "from alice: towards 10 of 10, towards 10 of them alone: at the side of this source") ||
		!strings.Contains(page.String(), "at this source&#39;s side") && !strings.Contains(page.String(), "at this source's side") {
		t.Error(text.String())
	}
}
