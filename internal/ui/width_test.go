package ui

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The last column goes on below itself, and no line is wider than the terminal. All words stay, in order.
func TestWrapLast(t *testing.T) {
	const why = "it carried 3.1 Mbit/s beside the direct path, which is enough to be worth its join; not tried with this server lately"
	rows := [][]string{{"direct", "yes", "", ""}, {"via bob (mapped)", "no", "", why}}
	for _, columns := range []int{72, 96, 300} {
		var out strings.Builder
		p := &printer{w: &out}
		p.table("PATH|TAKEN|LOSS|WHY", wrapLast([]string{"PATH", "TAKEN", "LOSS", "WHY"}, rows, columns))
		var words []string
		at := strings.Index(out.String(), "WHY")
		for line := range strings.Lines(out.String()) {
			if line = strings.TrimSuffix(line, "\n"); len(line) > columns {
				t.Errorf("at %d columns, a line has %d: %s", columns, len(line), line)
			}
			if len(line) > at {
				words = append(words, line[at:])
			}
		}
		if got := strings.Join(words, " "); got != "WHY "+why {
			t.Errorf("at %d columns, the column says %q", columns, got)
		}
	}
	if got := wrapLast([]string{"PATH", "TAKEN", "LOSS", "WHY"}, rows, 40); len(got) != len(rows) {
		t.Errorf("without room, there are %d rows", len(got))
	}
}

// A word that is wider than the terminal is broken, and others stay whole.
func TestWrapBreaksLongWords(t *testing.T) {
	if got := strings.Join(Wrap("a 2001:db8::1 bc", 5), "|"); got != "a|2001:|db8::|1 bc" && got != "a|2001:|db8:|:1 bc" {
		t.Errorf("lines are %s", got)
	}
}

func TestFold(t *testing.T) {
	for _, test := range []struct {
		line string
		want []string
	}{
		{"  short", []string{"  short"}},
		{"  some words that are too many here", []string{"  some words that", "    are too many", "    here"}},
		{"unindented words that are too many", []string{"unindented words", "that are too many"}},
		{"  a  ab  a sentence that is long", []string{"  a  ab  a sentence", "         that is", "         long"}},
		{"  a table  with  12 ms  a sentence that is long", []string{"  a table  with  12 ms", "      a sentence", "      that is long"}},
		{"  a table  with  12.0 ms  13.0 ms  yes", []string{"  a table  with  12.0 ms  13.0 ms  yes"}},
	} {
		if d := cmp.Diff(test.want, Fold(test.line, 20)); d != "" {
			t.Errorf("%q (-want +got)\n%s", test.line, d)
		}
	}
}
