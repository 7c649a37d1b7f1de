package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/stats"
)

// chartFolder returns where the tests draw; DCOL_CHARTS keeps them for the eye.
func chartFolder(t *testing.T) string {
	if dir := os.Getenv("DCOL_CHARTS"); dir != "" {
		return dir
	}
	return t.TempDir()
}

func of(sample ...float64) stats.Summary { return stats.Summarize(sample) }

func example() Goodput {
	s := Goodput{StepSeconds: 0.25, Paths: []Path{{Path: "direct"}, {Path: "waypoint"}}}
	for i := range 48 {
		at := float64(i) * 0.25
		direct, detour := 9.3+0.2*math.Sin(3*at), 9.2+0.3*math.Cos(4*at)
		if i < 2 {
			direct, detour = 4+2*float64(i), float64(i)
		}
		if at >= 7 {
			detour = 0
		}
		s.Paths[0].Mbps = append(s.Paths[0].Mbps, direct)
		s.Paths[1].Mbps = append(s.Paths[1].Mbps, detour)
	}
	return s
}

func TestGoodputChart(t *testing.T) {
	base := filepath.Join(chartFolder(t), "goodput")
	g := example()
	g.Title, g.Subtitle = "One download, two paths", "core-limited, cubic, Linux 6.18; averages over 250 ms"
	g.Marks = []Mark{{Seconds: 7, Label: "waypoint killed"}}
	g.Levels = []Level{{Value: 19.1, Label: "sum of the two TCPs"}}
	if err := g.Save(base); err != nil {
		t.Fatal(err)
	}
	checkChart(t, base, "One download, two paths", "direct", "waypoint", "goodput, Mbit/s", "time, s", "waypoint killed")
	svg, err := os.ReadFile(base + ".svg")
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Count(string(svg), "Liberation Sans"); all == 0 || all != strings.Count(string(svg), "Liberation Sans,Arial,Helvetica,sans-serif") {
		t.Error("a device without Liberation Sans would choose letters of another width")
	}
	for _, label := range []string{"waypoint killed", "sum of the two TCPs"} {
		before, _, _ := strings.Cut(string(svg), label)
		lines := strings.Split(strings.TrimSpace(before), "\n")
		if drawn := strings.Join(lines[max(0, len(lines)-3):], "\n"); !strings.Contains(drawn, "fill:#FFFFFF") {
			t.Errorf("curves and lines are not made pale behind %q, before which there is\n%s", label, drawn)
		}
	}
}

func TestBoxes(t *testing.T) {
	svg, err := Boxes{
		Unit: "goodput, Mbit/s",
		Boxes: []Box{
			{Label: "tcp", Summary: of(9.41, 9.42, 9.40, 9.43, 9.41, 9.42, 8.0, 9.7)},
			{Label: "tcp-detour", Summary: of(9.31, 9.12, 9.40, 9.23, 9.41, 9.42, 9.0, 9.2)},
			{Label: "mptcp-1", Summary: of(6.1, 5.2, 7.4, 6.8, 6.6, 5.9, 6.3, 6.4)},
			{Label: "dcol", Summary: of(18.6, 18.2, 18.9, 18.8, 18.7, 18.75, 17.2, 18.1)},
		},
		Levels: []Level{{Value: 18.83, Label: "sum of the two TCPs"}},
	}.SVG()
	if err != nil {
		t.Fatal(err)
	}
	said := textOf(t, string(svg))
	for _, word := range []string{"tcp-detour", "dcol", "goodput, Mbit/s", "sum of the two TCPs", "18.65"} {
		if !strings.Contains(said, word) {
			t.Errorf("the chart does not say %q", word)
		}
	}
}

// checkChart checks that both files are well-formed, and that the SVG says
// the words.
func checkChart(t *testing.T, base string, words ...string) {
	t.Helper()
	svg, err := os.ReadFile(base + ".svg")
	if err != nil {
		t.Fatal(err)
	}
	dec := xml.NewDecoder(bytes.NewReader(svg))
	var said strings.Builder
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s.svg is not well-formed: %v", base, err)
		}
		if text, ok := token.(xml.CharData); ok {
			said.Write(text)
		}
	}
	for _, w := range words {
		if !strings.Contains(said.String(), w) {
			t.Errorf("%s.svg does not say %q", base, w)
		}
	}
	f, err := os.Open(base + ".png")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	config, err := png.DecodeConfig(f)
	if err != nil {
		t.Fatalf("%s.png: %v", base, err)
	}
	if config.Width != int(chartWidth)*pngDPI/72 {
		t.Errorf("%s.png is %d wide", base, config.Width)
	}
}

func TestNothingToDraw(t *testing.T) {
	base := filepath.Join(t.TempDir(), "none")
	if err := (Goodput{}).Save(base); err == nil {
		t.Error("a chart of no series was drawn")
	}
	if _, err := (Boxes{Boxes: []Box{{Label: "empty"}}}).SVG(); err == nil {
		t.Error("a chart of no values was drawn")
	}
}

func TestEvenTicks(t *testing.T) {
	tests := []struct {
		low, high float64
		n         int
		want      string
	}{
		{0, 20, 5, "0 5 10 15 20"},
		{0, 12, 8, "0 2 4 6 8 10 12"},
		{0, 0.95, 5, "0.0 0.2 0.4 0.6 0.8"},
		{0, 1000, 5, "0 200 400 600 800 1000"},
		{3, 3, 5, ""},
	}
	for _, test := range tests {
		var got []string
		for _, tick := range (evenTicks{test.n}).Ticks(test.low, test.high) {
			got = append(got, tick.Label)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%v to %v: %q, want %q", test.low, test.high, strings.Join(got, " "), test.want)
		}
	}
}

// A path has the colour of its place among all, also where it is alone.
func TestStackKeepsColours(t *testing.T) {
	alone := Goodput{StepSeconds: 1, Paths: []Path{{Path: "waypoint", Mbps: []float64{1, 3}}}}
	for _, test := range []struct {
		all  []string
		want int
	}{{[]string{"direct", "waypoint"}, 1}, {[]string{"waypoint"}, 0}, {nil, 0}} {
		alone.Among = test.all
		if got := alone.stack()[0].index; got != test.want {
			t.Errorf("among %v: index %d, want %d", test.all, got, test.want)
		}
	}
	if got := alone.Highest(); got != 3 {
		t.Errorf("highest %v, want 3", got)
	}
	if got := (Goodput{}).Highest(); got != 0 {
		t.Errorf("highest of nothing %v, want 0", got)
	}
}

// However narrow a logarithmic axis is, it says where one is.
func TestDecadesHaveTicks(t *testing.T) {
	for _, test := range []struct{ low, high float64 }{{16.9, 19}, {41, 44}, {0.01, 90}, {30, 5000}} {
		if got := (decades{}).Ticks(test.low, test.high); len(got) < 2 {
			t.Errorf("from %v to %v there are the ticks %v", test.low, test.high, got)
		}
	}
}
