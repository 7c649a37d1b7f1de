package page

import (
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/scenario"
)

// written writes a suite's files; DCOL_PAGES keeps them for the eye.
func written(t *testing.T, s *report.SuiteResult) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if keep := os.Getenv("DCOL_PAGES"); keep != "" {
		dir = filepath.Join(keep, strings.ReplaceAll(t.Name(), "/", "-"))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(s, loadTables(t), dir, HTMLFile, JSONFile, CSVFile); err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// element is a start tag of the page.
type element struct {
	name  string
	attrs map[string]string
}

// parsed is a page's elements and its text. The page is written so that it is
// well-formed XML too, which finds what a browser would silently fix.
func parsed(t *testing.T, html string) (elements []element, text string) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(html))
	dec.Entity = xml.HTMLEntity
	var said strings.Builder
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return elements, said.String()
		}
		if err != nil {
			t.Fatalf("the page is not well-formed: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := element{token.Name.Local, map[string]string{}}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			elements = append(elements, e)
		case xml.CharData:
			said.Write(token)
		}
	}
}

// checkAlone checks that the page needs nothing but itself, and that its links
// lead somewhere.
func checkAlone(t *testing.T, html string) {
	t.Helper()
	elements, _ := parsed(t, html)
	ids := map[string]bool{}
	for _, e := range elements {
		if id := e.attrs["id"]; id != "" {
			if ids[id] {
				t.Errorf("the id %q is there twice", id)
			}
			ids[id] = true
		}
	}
	for _, e := range elements {
		for _, attr := range []string{"src", "href", "data", "action", "srcset"} {
			value, ok := e.attrs[attr]
			if ok && (!strings.HasPrefix(value, "#") || !ids[value[1:]]) {
				t.Errorf("<%s %s=%q> leads out of the page, or nowhere", e.name, attr, value)
			}
		}
		if e.name == "script" || e.name == "link" || e.name == "img" || e.name == "iframe" {
			t.Errorf("there is a <%s>", e.name)
		}
	}
	for _, word := range []string{"@import", "url("} {
		if strings.Contains(html, word) {
			t.Errorf("the page has %q", word)
		}
	}
}

func TestPapersPage(t *testing.T) {
	dir := written(t, repetition(t, 6))
	html := read(t, dir, HTMLFile)
	checkAlone(t, html)
	elements, text := parsed(t, html)
	plots := 0
	for _, e := range elements {
		if e.name == "svg" {
			plots++
		}
	}
	if plots != 17 {
		t.Errorf("%d plots, want the overview and one of each of the 16 networks", plots)
	}
	for _, word := range []string{
		"18.81 (0.02)", "are within 5 % of the published mean", "12.78", "not in mainline", "LIA", "6.18.0-made-up", "98.34 %", "at 1 % it has 4.4, and for half as many losses 6.2, as 2017 had", "Case Western", "client ↔ r1", "r1 → r2", "unlimited", "OpenVPN 2.6.3",
	} {
		if !strings.Contains(text, word) {
			t.Errorf("the page does not say %q", word)
		}
	}
}

func TestBeyondPage(t *testing.T) {
	dir := written(t, beyond())
	html := read(t, dir, HTMLFile)
	checkAlone(t, html)
	_, text := parsed(t, html)
	for _, word := range []string{"Gain of dcol over plain TCP", "link direct down", "99 %", "100 MB", "× 0.",
		"× 1.86", "× 2.57", "requests, as it is, cubic", "requests, the detour takes 100 ms more, cubic", "longest standstill",
		"Gain over plain TCP on the direct path", "40.1 s"} {
		if !strings.Contains(text, word) {
			t.Errorf("the page does not say %q", word)
		}
	}
	for _, word := range []string{"published", "Tables 1 and 2", "part of the bytes:"} {
		if strings.Contains(text, word) {
			t.Errorf("the page says %q, though nothing was published", word)
		}
	}
}

// A suite that was stopped at once has a page, too.
func TestPageWithoutRuns(t *testing.T) {
	for name, s := range map[string]*report.SuiteResult{
		"planned":  repetition(t, 0),
		"no parts": suiteOf("empty", ""),
	} {
		t.Run(name, func(t *testing.T) {
			dir := written(t, s)
			html := read(t, dir, HTMLFile)
			checkAlone(t, html)
			if strings.Contains(html, "NaN") || strings.Contains(html, "Inf") {
				t.Error("the page has numbers that are none")
			}
			var table Table
			if err := json.Unmarshal([]byte(read(t, dir, JSONFile)), &table); err != nil {
				t.Fatal(err)
			}
			for _, target := range table.Targets {
				if target.Met || target.Measured != nil {
					t.Errorf("a target without runs is decided: %+v", target)
				}
			}
		})
	}
}

// Variants that differ in one thing and another are no sweep, even if some have
// places on an axis.
func TestAxesNeedAllVariants(t *testing.T) {
	size := func(name string, kb float64) report.Variant {
		return report.Variant{Name: name, Coordinates: []report.Coordinate{{Axis: "size", Unit: "KB", Value: kb}}}
	}
	base, slow := report.Variant{Name: "base"}, report.Variant{Name: "slow"}
	for _, test := range []struct {
		variants []report.Variant
		axes     int
	}{
		{[]report.Variant{base, size("10KB", 10), size("20KB", 20)}, 1},
		{[]report.Variant{base, size("10KB", 10)}, 0},
		{[]report.Variant{base, slow, size("10KB", 10), size("20KB", 20)}, 0},
		{nil, 0},
		{conditions(), 0}, // one thing or the other is varied, never both
	} {
		if got := (&network{variants: test.variants}).axes(); len(got) != test.axes {
			t.Errorf("%v: axes %v, want %d", test.variants, got, test.axes)
		}
	}
}

// Those with more paths stand beside their kin, and have its colour.
func TestProceduresStandBesideTheirKin(t *testing.T) {
	got := []string{"tcp", "tcp-detour", "dcol", "dcol-3", "else-2x", "dcol-in-band-4", "mptcp-1"}
	sortProcedures(got)
	want := []string{"mptcp-1", "dcol", "dcol-3", "dcol-in-band-4", "tcp", "tcp-detour", "else-2x"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, kin := lookOf("dcol-in-band-4", 3), lookOf("dcol-in-band", 1); got != kin {
		t.Errorf("dcol-in-band-4 looks like %+v, dcol-in-band like %+v", got, kin)
	}
}

// The unit of an axis stands before what is said about it besides.
func TestAxisTitle(t *testing.T) {
	for _, test := range []struct {
		axis axis
		want string
	}{
		{axis{name: "rate", unit: "Mbit/s"}, "rate, Mbit/s"},
		{axis{name: "queue", label: "room; 25 packets are one product", unit: "packets"}, "room, packets (25 packets are one product)"},
		{axis{name: "size", unit: kilobytes}, "size"},
	} {
		if got := test.axis.title(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// What is compared is said once, and where it differs for which networks.
func TestProceduresInWords(t *testing.T) {
	_, text := parsed(t, read(t, written(t, beyond()), HTMLFile))
	for word, times := range map[string]int{"plain TCP, made up": 1, "in sweep": 1, "in flow-sizes": 1, "two paths": 1, "both paths": 1} {
		if got := strings.Count(text, word); got != times {
			t.Errorf("the page says %q %d times, want %d", word, got, times)
		}
	}
	if _, text = parsed(t, read(t, written(t, repetition(t, 2)), HTMLFile)); strings.Contains(text, "What is compared") {
		t.Error("the page explains procedures of which nothing is known")
	}
}

// What is met in many places is one line, and what is not stands first.
func TestExpectationsAreGrouped(t *testing.T) {
	s := golden()
	side := func(v float64) *float64 { return &v }
	s.Parts[0].Expectations = []report.Expectation{
		{Description: "costs nothing", Expression: "a > b", Variant: "far", Met: true, Left: side(20), Right: side(10)},
		{Description: "costs nothing", Expression: "a > b", Variant: "near", Met: true, Left: side(11), Right: side(10.5)},
		{Description: "costs nothing", Expression: "a > b", Variant: "nearest", Left: side(9), Right: side(10.25)},
		{Description: "is quick", Expression: "c < d", Variant: "far", Error: "no run"},
	}
	_, text := parsed(t, read(t, written(t, s), HTMLFile))
	before, after, found := strings.Cut(text, "By expectation")
	if !found {
		t.Fatal("the page has no table of what is so")
	}
	after, _, _ = strings.Cut(after, "How true the runs are")
	for _, word := range []string{"2 of 4 expectations of the scenarios hold, 1 does not, 1 cannot be decided", "NOT MET", "10.25"} {
		if !strings.Contains(before, word) {
			t.Errorf("the page does not say %q first", word)
		}
	}
	for _, word := range []string{"costs nothing", "near", "11.00", "10.50", "2 of 3 places"} {
		if !strings.Contains(after, word) {
			t.Errorf("what is so does not say %q", word)
		}
	}
	if strings.Contains(after, "20.00") || strings.Contains(after, "is quick") {
		t.Error("what is so says more than where it is nearest to failing")
	}
}

// Plots of one congestion control say that there are others.
func TestPlotsNameTheirCongestionControl(t *testing.T) {
	_, text := parsed(t, read(t, written(t, repetition(t, 2)), HTMLFile))
	if want := "of the congestion control cubic alone. With reno and bbr there were runs as well"; strings.Count(text, want) != 1 || strings.Count(text, "A box is the middle half") != 1 {
		t.Errorf("not the first network's plots alone say %q, and how to read them", want)
	}
	if _, text = parsed(t, read(t, written(t, beyond()), HTMLFile)); strings.Contains(text, " alone. With") {
		t.Error("a page with one congestion control names others")
	}
}

// One run of every kind that was interrupted: what is there is shown.
func TestPageOfAnInterruptedSuite(t *testing.T) {
	s := repetition(t, 3)
	first := s.Parts[0]
	first.Runs = first.Runs[:31]
	var names []string
	for _, v := range first.Variants {
		names = append(names, v.Name)
	}
	first.Summarize(names, procedures(), []string{"cubic"}, []scenario.Expectation{
		{Description: "not yet", That: `median("tcp-wireguard") > 1`, Variants: []string{"delay-100"}},
	})
	s.Parts = s.Parts[:1]
	dir := written(t, s)
	html := read(t, dir, HTMLFile)
	checkAlone(t, html)
	_, text := parsed(t, html)
	for _, word := range []string{"have no run yet", "no run", "1 cannot be decided (why is in result.json)."} {
		if !strings.Contains(text, word) {
			t.Errorf("the page does not say %q", word)
		}
	}
}

// Names and descriptions are words, whatever is in them.
func TestPageEscapes(t *testing.T) {
	const evil = `<script>alert("x")</script> & "more"`
	s := repetition(t, 2)
	s.Description, s.Environment.Kernel = evil, evil
	s.Parts[0].Description = evil
	s.Parts[0].Variants[0].Description = evil
	html := read(t, written(t, s), HTMLFile)
	checkAlone(t, html)
	if _, text := parsed(t, html); !strings.Contains(text, evil) {
		t.Error("the page does not say what the description says")
	}
}

func TestRowsGolden(t *testing.T) {
	dir := written(t, golden())
	for _, name := range []string{JSONFile, CSVFile} {
		compare(t, name, read(t, dir, name))
	}
	lines, err := csv.NewReader(strings.NewReader(read(t, dir, CSVFile))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 5 {
		t.Errorf("%d lines, want a header and four rows", len(lines))
	}
}

// A page does not speak of comparisons with plain TCP if there were no such runs, nor of one run as of many.
func TestPageOfOneRun(t *testing.T) {
	one := func(procedures ...string) string {
		r := part("made-up", conditions()[:1], procedures, []string{"cubic"}, 1, func(report.Variant, string, string) float64 { return 10 })
		_, text := parsed(t, read(t, written(t, suiteOf("one", "A network: is it quick?", r)), HTMLFile))
		return text
	}
	alone, beside := one("dcol"), one("dcol", "tcp")
	for _, word := range []string{"Is it quick? This is", "1 run counts"} {
		if !strings.Contains(alone, word) {
			t.Errorf("the page does not say %q", word)
		}
	}
	const below = "the median over that of plain TCP"
	if strings.Contains(alone, below) || strings.Contains(alone, "runs count") || !strings.Contains(beside, below) || !strings.Contains(beside, "2 runs count") {
		t.Errorf("one run:\n%s\ntwo:\n%s", alone, beside)
	}
}
