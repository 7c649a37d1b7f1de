package chain

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/present"
	"github.com/detour-collective/dcol/internal/trace/recipe"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// told is a recipe's expected verdict. In the text, BOX is the box's hop and NEXT the one behind.
type told struct {
	outcome recipe.Outcome
	text    string
}

// recipeMatrix lists the boxes that a single trace with a SYN does not show, each with the recipe that does. If quotes of
// field show it, all findings have the smallest interval that they allow, and shown is the verdict. Otherwise that is
// hidden, or blind where no router quotes whole packets at all.
var recipeMatrix = []struct {
	kind                 middlebox.Kind
	recipe               string
	field                compare.Field // "": no quote shows it
	seen                 visibility
	shown, hidden, blind told
}{
	{
		kind: middlebox.RemoveJoins, recipe: "mptcp", field: compare.Join,
		shown: told{recipe.Changed, "MP_JOIN is changed or removed"}, hidden: told{recipe.Changed, "MP_JOIN does not arrive"},
	},
	{kind: middlebox.DropJoins, recipe: "mptcp", hidden: told{recipe.Blocked, "SYNs with MP_JOIN are lost behind hop BOX ("}},
	{kind: middlebox.RefuseJoins, recipe: "mptcp", hidden: told{recipe.Blocked, "resets SYNs with MP_JOIN at hop NEXT, before the server at hop 10"}},
	{
		kind: middlebox.RemoveDataMPTCP, recipe: "mptcp", field: compare.DSS,
		shown: told{recipe.Changed, "when data flows: DSS"}, hidden: told{recipe.Changed, "when data flows: no data acknowledgement"},
	},
	{kind: middlebox.RemoveServerDSS, recipe: "mptcp", hidden: told{recipe.Changed, "when data flows: no data acknowledgement"}},
	{kind: middlebox.RemoveServerMaps, recipe: "mptcp", hidden: told{recipe.Changed, "when the server sends data: its segments have no DSS"}},
	{kind: middlebox.RemoveServerJoin, recipe: "mptcp", hidden: told{recipe.Changed, "a second subflow of a connection comes without MP_JOIN"}},
	{kind: middlebox.DropUnknown, recipe: "in-band", hidden: told{recipe.Blocked, "are dropped behind hop BOX ("}},
	{
		kind: middlebox.RandomiseSeqOnly, recipe: "sequence", field: compare.Seq, seen: always,
		shown: told{recipe.Changed, "but not those in SACK blocks"},
	},
	{
		kind: middlebox.Split, recipe: "segments", field: compare.Payload, shown: told{recipe.Changed, "Large segments are split."},
		hidden: told{recipe.Good, "Segments stay as they are as far as"}, blind: told{recipe.Unknown, "Nothing shows"},
	},
	{
		kind: middlebox.Join, recipe: "segments", field: compare.Payload, shown: told{recipe.Changed, "Small segments are joined."},
		hidden: told{recipe.Good, "Segments stay as they are as far as"}, blind: told{recipe.Unknown, "Nothing shows"},
	},
	{
		kind: middlebox.ChangePayload, recipe: "payload", field: compare.Payload, shown: told{recipe.Changed, "Data is changed on the way."},
		hidden: told{recipe.Good, "Data is not changed as far as"}, blind: told{recipe.Unknown, "Nothing shows"},
	},
	{kind: middlebox.Proxy, recipe: "proxy", hidden: told{recipe.Changed, "Something answers in the server's place at hop NEXT:"}},
	{kind: middlebox.Refuse, recipe: "proxy", hidden: told{recipe.Changed, "Something answers in the server's place at hop NEXT:"}},
	{kind: middlebox.EchoOptions, recipe: "options", hidden: told{recipe.Changed, "Unknown options are echoed"}},
}

// Every box, at each of eight hops, with each choice of quotes.
func TestRecipeMatrix(t *testing.T) {
	for _, box := range recipeMatrix {
		for at := 1; at <= 8; at++ {
			for n, full := range fullQuotes {
				if n == 8 {
					full = append(slices.Clone(full), 9)
				}
				hops := make([]Hop, 9)
				for i := range hops {
					hops[i].Quotes = middlebox.Quote8
					if slices.Contains(full, i+1) {
						hops[i].Quotes = middlebox.QuoteAll
					}
				}
				hops[at-1].Box = box.kind
				want, interval := box.hidden, ""
				if box.field != "" {
					if _, after, by := smallest(box.field, box.seen, at, full); by > 0 {
						want, interval = box.shown, fmt.Sprintf("(%d,%d]", after, by)
					}
				}
				if len(full) == 0 && box.blind.text != "" {
					want = box.blind
				}
				v := cook(t, box.recipe, hops, Multipath(80, 21), false)
				text := strings.NewReplacer("BOX", fmt.Sprint(at), "NEXT", fmt.Sprint(at+1)).Replace(want.text)
				if v.Outcome != want.outcome || !strings.Contains(v.Text, text) || intervals(v.Findings) != interval {
					t.Errorf("%s at %d, %d full quotes: %s %q, findings %s; want %s %q, %s",
						box.kind, at, n, v.Outcome, v.Text, intervals(v.Findings), want.outcome, text, interval)
				}
			}
		}
	}
}

// intervals lists the different intervals of findings.
func intervals(findings []present.Finding) string {
	var all []string
	for _, f := range findings {
		all = append(all, fmt.Sprintf("(%d,%d]", f.After, f.By))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// Each kind of box is in one of the matrices.
func TestMatricesAreWhole(t *testing.T) {
	for _, kind := range middlebox.Kinds() {
		there := false
		for _, box := range matrix {
			there = there || box.kind == kind
		}
		for _, box := range recipeMatrix {
			there = there || box.kind == kind
		}
		if !there {
			t.Errorf("no test traces through %q", kind)
		}
	}
}
