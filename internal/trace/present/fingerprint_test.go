package present

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// Two marks in one place name a kind of box. One alone does not, and neither do two in different places.
func TestFingerprint(t *testing.T) {
	value := func(text string) compare.Value { return compare.Value{Present: text != "", Raw: text, Text: text} }
	finding := func(f compare.Field, sent, seen string, after, by int) compare.Finding {
		return compare.Finding{Change: compare.Change{Field: f, Sent: value(sent), Seen: value(seen)}, After: after, By: by, Padded: seen == ""}
	}
	seq := finding(compare.Seq, "1", "2", 2, 3)
	for _, test := range []struct {
		name     string
		findings []compare.Finding
		want     string
	}{
		{"one mark", []compare.Finding{seq}, ""},
		{"two in one place", []compare.Finding{seq, finding(compare.MSS, "1460", "1380", 1, 5)}, "between hop 2 and hop 3 (sequence numbers moved, MSS 1380)"},
		{"three", []compare.Finding{seq, finding(compare.MSS, "1460", "1380", 1, 5), finding(compare.Capable, "x", "", 0, 4)}, "overwritten by NOPs"},
		{"two in two places", []compare.Finding{seq, finding(compare.MSS, "1460", "1380", 3, 5)}, ""},
		{"another MSS", []compare.Finding{seq, finding(compare.MSS, "1460", "1452", 1, 5)}, ""},
	} {
		got := fingerprint(&trace.Path{Findings: test.findings})
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
