package chart

import (
	"encoding/xml"
	"errors"
	"html/template"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func ptr(v float64) *float64 { return &v }

func evaluation() Boxes {
	c := Boxes{Unit: "goodput, Mbit/s", ReferenceName: "published"}
	names := []string{"mptcp-1", "dcol", "dcol-in-band", "dcol-openvpn", "dcol-wireguard", "tcp", "tcp-detour", "tcp-openvpn", "tcp-wireguard"}
	for i, name := range names {
		middle := 9.4
		if strings.HasPrefix(name, "dcol") {
			middle = 18.6
		}
		spread := 0.05 * float64(i)
		column := Box{
			Label: name, Look: Look{Colour: i % 5, Hollow: i > 4},
			Summary: of(middle-spread, middle, middle+spread, middle+2*spread, middle-8*spread),
		}
		if i%2 == 0 {
			column.Reference = ptr(middle - 0.7)
		}
		c.Boxes = append(c.Boxes, column)
	}
	return c
}

func heat() Heat {
	return Heat{
		XTitle: "rate of the detour, Mbit/s", YTitle: "delay of the detour, ms",
		XLabels: []string{"1", "2", "5", "10", "20"}, YLabels: []string{"5", "20", "80"},
		Ratios: [][]float64{{0.97, 1.1, 1.4, 1.96, 2.0}, {0.93, 1.05, 1.31, 1.9, 1.9}, {0.7, 0.9, 1.2, math.NaN(), 1.5}},
	}
}

func TestInlineCharts(t *testing.T) {
	narrow := evaluation()
	narrow.Boxes[0].Label = "a-procedure-of-a-long-name"
	narrow.Boxes[1].Summary = of()
	killed := example()
	killed.Title, killed.Marks = "not in a page", []Mark{{Seconds: 7, Label: "waypoint killed"}}
	tests := map[string]struct {
		draw  func() (template.HTML, error)
		words []string
	}{
		"boxes":      {evaluation().SVG, []string{"published", "wireguard", "18.60", "goodput, Mbit/s"}},
		"boxes-long": {narrow.SVG, []string{"a-procedure-of-a-long-name", "dcol-wireguard"}},
		"heat":       {heat().SVG, []string{"1.96", "0.70", "–", "delay of the detour, ms"}},
		"goodput":    {killed.SVG, []string{"direct", "waypoint killed"}},
	}
	for name, test := range tests {
		svg, err := test.draw()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := os.WriteFile(filepath.Join(chartFolder(t), "inline-"+name+".svg"), []byte(svg), 0o644); err != nil {
			t.Fatal(err)
		}
		said := textOf(t, string(svg))
		for _, word := range test.words {
			if !strings.Contains(said, word) {
				t.Errorf("%s does not say %q", name, word)
			}
		}
		if strings.Contains(said, "not in a page") {
			t.Errorf("%s says what it should not", name)
		}
		start, _, _ := strings.Cut(string(svg), ">")
		if strings.Contains(start, "width") || strings.Contains(string(svg), " id=") {
			t.Errorf("%s does not fit into a page: it starts %s", name, start)
		}
	}
}

// A median stands in a column beside the plot, where no diamond is, whatever its value.
func TestMediansStandInAColumn(t *testing.T) {
	chart := evaluation()
	chart.Boxes[0].Reference = ptr(17) // far above its box
	svg, err := chart.SVG()
	if err != nil {
		t.Fatal(err)
	}
	places := map[string][]string{}
	for _, m := range regexp.MustCompile(`<text x="([^"]*)" y="[^"]*"[^>]*>([^<]*)<`).FindAllStringSubmatch(string(svg), -1) {
		places[strings.TrimSpace(m[2])] = append(places[strings.TrimSpace(m[2])], m[1])
	}
	medians := slices.Concat(places["9.40"], places["18.60"])
	references := slices.Concat(places["17.00"], places["17.90"])
	if len(medians) != 9 || len(slices.Compact(medians)) != 1 {
		t.Errorf("the medians are not all in a column: %v", places)
	}
	if len(references) != 3 || len(slices.Compact(references)) != 1 || references[0] == medians[0] {
		t.Errorf("the references are not in a column of their own: %v", places)
	}
}

// textOf returns all that an SVG says; the SVG must be well-formed.
func textOf(t *testing.T, svg string) string {
	t.Helper()
	var said strings.Builder
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return said.String()
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		if text, ok := token.(xml.CharData); ok {
			said.Write(text)
		}
	}
}

func TestNothingToDrawInline(t *testing.T) {
	zero := evaluation()
	zero.Log, zero.Boxes[0].Summary = true, of(0, 1)
	for name, draw := range map[string]func() (template.HTML, error){
		"boxes":             Boxes{Boxes: []Box{{Label: "empty", Reference: ptr(1)}}}.SVG,
		"heat":              Heat{}.SVG,
		"logarithm of zero": zero.SVG,
		"goodput":           Goodput{}.SVG,
	} {
		if _, err := draw(); err == nil {
			t.Errorf("%s: nothing was drawn without an error", name)
		}
	}
}

// A cell above 1 and one below differ in hue, and further ones have more of it.
func TestHeatTint(t *testing.T) {
	h := cells{furthest: math.Log(2)}
	if c := h.tint(1); c.R != 255 || c.B != 255 {
		t.Errorf("1 is not white: %v", c)
	}
	gain, more, loss := h.tint(1.3), h.tint(2), h.tint(0.7)
	if gain.R >= gain.B || more.R >= gain.R || loss.B >= loss.R {
		t.Errorf("gain %v, more %v, loss %v", gain, more, loss)
	}
}

// Names of paths that carry the same stand apart, inside the chart.
func TestNamesStayApart(t *testing.T) {
	g := Goodput{StepSeconds: 1}
	for _, name := range []string{"a", "b", "c", "d"} {
		g.Paths = append(g.Paths, Path{Path: name, Mbps: []float64{0, 0}})
	}
	svg, err := g.SVG()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(string(svg), "<text") {
		for _, path := range g.Paths {
			if strings.Contains(part, ">"+path.Path+"</text>") {
				_, place, _ := strings.Cut(part, `y="`)
				place, _, _ = strings.Cut(place, `"`)
				seen[place] = true
			}
		}
	}
	if len(seen) != 4 {
		t.Errorf("four names stand at %d heights: %v", len(seen), seen)
	}
}
