package chain

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/trace/recipe"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// Behind the last router nothing quotes a SYN with MP_JOIN. The server's answer shows what becomes of it.
func TestJoinsBehindTheLastQuote(t *testing.T) {
	for _, test := range []struct {
		box     middlebox.Kind
		server  Server
		quotes  middlebox.Quotes
		want    recipe.Outcome
		text    string
		certain bool
	}{
		{middlebox.None, Multipath(80), middlebox.QuoteAll, recipe.Good, "MPTCP works", true},
		{middlebox.None, Multipath(80), middlebox.Quote8, recipe.Good, "MPTCP works", true},
		{middlebox.RemoveJoins, Multipath(80), middlebox.QuoteAll, recipe.Changed, "MP_JOIN does not arrive", false},
		{middlebox.RemoveJoins, Multipath(80), middlebox.Quote8, recipe.Changed, "MP_JOIN does not arrive", false},
		{middlebox.DropJoins, Multipath(80), middlebox.QuoteAll, recipe.Blocked, "SYNs with MP_JOIN are lost behind hop 5 (", false},
		{middlebox.DropJoins, Multipath(80), middlebox.Quote8, recipe.Blocked, "SYNs with MP_JOIN are lost behind hop 5 (", false},
		{middlebox.DropJoins, Multipath(21), middlebox.QuoteAll, recipe.Blocked, "SYNs with MP_JOIN are lost behind hop 5 (", false},
	} {
		for _, six := range []bool{false, true} {
			hops := make([]Hop, 5)
			for i := range hops {
				hops[i].Quotes = test.quotes
			}
			hops[4].Box = test.box
			v := cook(t, "mptcp", hops, test.server, six)
			if v.Outcome != test.want || !strings.Contains(v.Text, test.text) || (v.Confidence == recipe.Certain) != test.certain {
				t.Errorf("%q at the last hop, quotes %q, IPv6 %v: %s (%s): %s\n\t%s",
					test.box, test.quotes, six, v.Outcome, v.Confidence, v.Text, strings.Join(v.Evidence, "\n\t"))
			}
		}
	}
}

// A box before the server that refuses joins is found by its distance.
func TestJoinsAreRefusedOnTheWay(t *testing.T) {
	hops := make([]Hop, 5)
	hops[2].Box = middlebox.RefuseJoins
	v := cook(t, "mptcp", hops, Multipath(80), false)
	if v.Outcome != recipe.Blocked || !strings.Contains(v.Text, "resets SYNs with MP_JOIN at hop 4") {
		t.Errorf("%s: %s\n\t%s", v.Outcome, v.Text, strings.Join(v.Evidence, "\n\t"))
	}
}
