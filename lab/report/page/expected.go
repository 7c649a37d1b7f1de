package page

import (
	"fmt"
	"math"
	"regexp"
)

func expectationsLine(expectations []Expectation) string {
	met, open := 0, 0
	for _, e := range expectations {
		switch {
		case e.Error != "":
			open++
		case e.Met:
			met++
		}
	}
	return say("expectations", map[string]any{
		"All": len(expectations), "Met": met, "Unmet": len(expectations) - met - open, "Open": open, "File": JSONFile,
	})
}

// held returns the section of expectations that are met.
func (b *book) held() section {
	t := b.expectationTable(b.expectations(), true)
	if len(t.Rows) == 0 {
		return section{}
	}
	return section{ID: "held", Title: "What was expected and is so", Tables: []table{t}}
}

// expectationTable returns one line for each expectation that is met, or for each that is not, for all its places
// together. The line names the place where it came nearest to failing, or failed most.
func (b *book) expectationTable(expectations []Expectation, met bool) table {
	type group struct {
		Expectation
		so, places int
	}
	var groups []*group
	find := func(e Expectation) *group {
		for _, g := range groups {
			if g.Network == e.Network && g.Description == e.Description && g.Expectation.Expression == e.Expression {
				return g
			}
		}
		groups = append(groups, &group{Expectation: e})
		return groups[len(groups)-1]
	}
	for _, e := range expectations {
		if e.Error != "" {
			continue
		}
		g := find(e)
		g.places++
		if e.Met != met {
			continue
		}
		g.so++
		if g.so == 1 || met == (room(e) < room(g.Expectation)) {
			g.Expectation = e
		}
	}
	t := table{Title: "By expectation", Words: 2, Note: say("sides", nil), Head: []string{"network", "expected", "left", "right", "holds in"}}
	if !met {
		t.Title, t.Head[4] = "What the scenarios expect and is not so", "not in"
	}
	for _, g := range groups {
		if g.so == 0 {
			continue
		}
		what := entry{Text: g.Description, Below: []string{g.Expectation.Expression, "closest in: " + b.whereOf(g.Expectation)}}
		if !met {
			what.Text, what.Mark = "NOT MET: "+what.Text, bad
			what.Below = []string{g.Expectation.Expression, b.whereOf(g.Expectation)}
			if cause := b.causeOf(g.Expectation); cause != "" {
				what.Below = append(what.Below, "cause: "+cause)
			}
		}
		t.Rows = append(t.Rows, []entry{
			{Text: g.Network}, what, value(g.Left), value(g.Right), {Text: fmt.Sprintf("%d of %s", g.so, counted(g.places, "place", "places"))},
		})
	}
	return t.grouped()
}

// whereOf returns the place that an expectation is about.
func (b *book) whereOf(e Expectation) string {
	n := b.network(e.Network)
	return place(n, n.variant(e.Variant), e.Congestion)
}

// detours finds the procedures with a detour in an expression.
var detours = regexp.MustCompile(`"(dcol[^"]*)"`)

// causeOf returns why the procedure that an expectation is about is behind plain TCP, or ""
// if it is not.
func (b *book) causeOf(e Expectation) string {
	found := detours.FindStringSubmatch(e.Expression)
	if found == nil {
		return ""
	}
	n := b.network(e.Network)
	row, ok := n.row(cell{e.Variant, found[1], e.Congestion})
	if !ok {
		return ""
	}
	if c, ok := n.compare(row); ok && c.worse() {
		return c.cause()
	}
	return ""
}

// room returns the difference of an expectation's sides, as a share of the larger.
func room(e Expectation) float64 {
	if e.Left == nil || e.Right == nil {
		return math.Inf(1)
	}
	larger := max(math.Abs(*e.Left), math.Abs(*e.Right))
	if larger == 0 {
		return 0
	}
	return math.Abs(*e.Left-*e.Right) / larger
}
