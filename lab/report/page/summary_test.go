package page

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/report"
)

func summaryOf(t *testing.T, s *report.SuiteResult) section {
	t.Helper()
	found, err := newBook(s, loadTables(t)).summary()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The numbers are those of golden, worked out by hand.
func TestSummaryByHand(t *testing.T) {
	want := "dcol was compared with plain TCP on the direct path in 1 place: it is better in 1, alike in 0 and worse in 0. " +
		"At best it is 1.96 times as good (core-limited, base, cubic, dcol), at worst 1.96 times (core-limited, base, cubic, dcol)."
	s := golden()
	s.Parts[0].Variants[0].Description = "base"
	if got := summaryOf(t, s).Text[0]; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// A page begins with what dcol brings, and a plot of it; the targets come after it.
func TestSummaryComesFirst(t *testing.T) {
	for name, test := range map[string]struct {
		suite *report.SuiteResult
		words []string
	}{
		"papers": {repetition(t, 3), []string{"compared with plain TCP", "at worst", "core-limited dcol-openvpn", "times as good as plain TCP on the direct path"}},
		"beyond": {beyond(), []string{"compared with plain TCP", "at worst", "flow-sizes dcol", "direct-dies dcol", "times as good as plain TCP on the direct path"}},
	} {
		_, text := parsed(t, read(t, written(t, test.suite), HTMLFile))
		before, _, found := strings.Cut(text, "Targets, in per cent")
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
func TestNoClaimsWithoutRuns(t *testing.T) {
	for name, s := range map[string]*report.SuiteResult{"planned": repetition(t, 0), "no parts": suiteOf("empty", "")} {
		if got := strings.Join(summaryOf(t, s).Text, " "); strings.Contains(got, "compared") {
			t.Errorf("%s claims %q", name, got)
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
