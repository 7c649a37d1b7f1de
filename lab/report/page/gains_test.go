package page

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/report"
)

func gainsOf(t *testing.T, s *report.SuiteResult) string {
	t.Helper()
	return strings.Join(newBook(s, loadTables(t)).gains(), " ")
}

// The numbers are those of golden, worked out by hand.
func TestGainsByHand(t *testing.T) {
	want := "With dcol a program's TCP connection uses several paths at once. On two paths on which plain TCP carries 9.50 and 9.50 Mbit/s, " +
		"dcol carries 18.60 Mbit/s: 97.9 % of their sum, and 1.96 times the direct path's. " +
		"At worst (core-limited, base, cubic) dcol carries 95.8 % more than plain TCP on the direct path."
	s := golden()
	s.Parts[0].Variants[0].Description = "base"
	if got := gainsOf(t, s); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A page begins with what dcol brings, and the targets come after it.
func TestGainsComeFirst(t *testing.T) {
	for name, test := range map[string]struct {
		suite *report.SuiteResult
		words []string
	}{
		"papers": {papers(t, 3), []string{"With 1 % loss on the direct path dcol carries 13.", "share one bottleneck", "At worst ("}},
		"beyond": {beyond(), []string{
			"of the time that it takes with plain TCP", "times what plain TCP does on the direct path", "stands still for", "At worst (",
		}},
	} {
		_, text := parsed(t, read(t, written(t, test.suite), HTMLFile))
		before, _, found := strings.Cut(text, "targets are met")
		if !found {
			t.Fatalf("%s has no targets", name)
		}
		for _, word := range test.words {
			if !strings.Contains(before, word) {
				t.Errorf("%s does not begin with %q", name, word)
			}
		}
	}
}

// Without runs nothing is claimed.
func TestNoGainsWithoutRuns(t *testing.T) {
	for name, s := range map[string]*report.SuiteResult{"planned": papers(t, 0), "no parts": suiteOf("empty", "")} {
		if got := gainsOf(t, s); got != "" {
			t.Errorf("%s claims %q", name, got)
		}
	}
}

func TestMoreOrLess(t *testing.T) {
	for ratio, want := range map[float64]string{0.98: "2.0 % less than", 1.0004: "as much as", 1.95: "95.0 % more than"} {
		if got := moreOrLess(ratio); got != want {
			t.Errorf("%v: %q, want %q", ratio, got, want)
		}
	}
}

// What is better than headers allow is said to be so.
func TestBeyondHeaders(t *testing.T) {
	for points, want := range map[float64]string{-0.1: "", 0.46: "what the method gives", 1.3: "more than the method"} {
		if got := beyondHeaders(points); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%v points: %q, want %q", points, got, want)
		}
	}
}

// The title is the first words of the description, or else the name.
func TestHeading(t *testing.T) {
	for _, test := range []struct{ description, title, lead string }{
		{"Beyond the papers: downloads, queues.", "Beyond the papers", "Downloads, queues. This is the report of x, begun on 2026-11-21."},
		{"A few runs.", "A few runs", "This is the report of x, begun on 2026-11-21."},
		{"", "x", "This is the report of x, begun on 2026-11-21."},
	} {
		if title, lead := newBook(suiteOf("x", test.description), loadTables(t)).heading(); title != test.title || lead != test.lead {
			t.Errorf("%q: %q and %q", test.description, title, lead)
		}
	}
}
