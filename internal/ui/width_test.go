package ui

import (
	"strings"
	"testing"
)

// The last column goes on below itself, and no line is wider than the terminal. All words stay, in order.
func TestWrapLast(t *testing.T) {
	const why = "it carried 3.1 Mbit/s beside the direct path, which is enough to be worth its join; not tried with this server lately"
	rows := [][]string{{"direct", "yes", "", ""}, {"via bob (mapped)", "no", "", why}}
	for _, columns := range []int{60, 96, 300} {
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

func TestWrapKeepsLongWords(t *testing.T) {
	if got := strings.Join(wrap("a 2001:db8:1234:5678::1 b", 5), "|"); got != "a|2001:db8:1234:5678::1|b" {
		t.Errorf("lines are %s", got)
	}
}
