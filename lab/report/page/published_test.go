package page

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/report"
)

// Cells under the published congestion control count as repeated if they are within 5 % of the published mean. The others are listed
// with the known reason.
func TestRepeated(t *testing.T) {
	variants := []report.Variant{conditions()[0], conditions()[1]}
	s := suiteOf("papers/dcol", "made up", part("core-limited", variants, []string{"mptcp-1", "tcp"}, []string{"cubic", "lia"}, 3,
		func(v report.Variant, procedure, congestion string) float64 {
			if v.Name == "loss-0.5" && procedure == "mptcp-1" && congestion == "lia" {
				return 6
			}
			return 9.4
		}))
	found := newBook(s, loadTables(t)).repeated()
	if want := "3 of 4 published cells that were measured under the published congestion control are within 5 % of the published mean."; found.Text[0] != want {
		t.Errorf("%q, want %q", found.Text[0], want)
	}
	row := found.Tables[0].Rows[0]
	if len(found.Tables[0].Rows) != 1 || row[0].Text != "mptcp-1" || !strings.Contains(row[0].Below[0], "lia") || strings.Contains(row[0].Below[1], "not explained") {
		t.Errorf("listed: %+v", found.Tables[0].Rows)
	}
	if none := newBook(beyond(), loadTables(t)).repeated(); none.Title != "" {
		t.Errorf("of networks without published cells: %+v", none)
	}
}

// What nobody has explained says so.
func TestNotExplained(t *testing.T) {
	s := suiteOf("papers/dcol", "made up", part("core-limited", conditions()[:1], []string{"mptcp-1"}, []string{"lia"}, 3,
		func(report.Variant, string, string) float64 { return 1 }))
	if got := newBook(s, loadTables(t)).repeated().Tables[0].Rows[0][0].Below[1]; got != "not explained yet" {
		t.Errorf("%q", got)
	}
}
