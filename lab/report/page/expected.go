package page

import (
	"fmt"
	"math"
)

// sides explains the columns of a comparison.
const sides = "Left and right are the two sides of the comparison: goodput in Mbit/s, latencies and standstills in ms, shares from 0 to 1."

func expectationsLine(expectations []Expectation) string {
	met, unmet, open := 0, 0, 0
	for _, e := range expectations {
		switch {
		case e.Error != "":
			open++
		case e.Met:
			met++
		default:
			unmet++
		}
	}
	line := fmt.Sprintf("Of %s that the scenarios expect, %s", counted(len(expectations), "thing", "things"), counted(met, "holds", "hold"))
	if unmet > 0 {
		line += " and " + counted(unmet, "does not", "do not")
	}
	line += "."
	if open > 0 {
		line += fmt.Sprintf(" %d more cannot be decided; why is in %s.", open, JSONFile)
	}
	return line
}

func (b *book) unmetTable(expectations []Expectation) table {
	t := table{Title: "What the scenarios expect and is not so", Words: 1, Note: sides, Head: []string{"", "left", "right"}}
	for _, e := range expectations {
		if e.Met || e.Error != "" {
			continue
		}
		t.Rows = append(t.Rows, []entry{
			{Text: "NOT MET", Mark: bad, Below: []string{e.Description, e.Expression, b.whereOf(e)}}, side(e.Left), side(e.Right),
		})
	}
	return t
}

// whereOf is the place that an expectation is about.
func (b *book) whereOf(e Expectation) string {
	n := b.network(e.Network)
	if n == nil {
		return e.Network
	}
	return place(n, n.variant(e.Variant), e.Congestion)
}

// held is what the scenarios expect and is so: a line for each expectation, however
// many variants it is about, with the place where it was nearest to failing.
func (b *book) held() ([]section, error) {
	type group struct {
		Expectation
		met, places int
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
	for _, e := range b.expectations() {
		if e.Error != "" {
			continue
		}
		g := find(e)
		g.places++
		if !e.Met {
			continue
		}
		g.met++
		if g.met == 1 || room(e) < room(g.Expectation) {
			g.Expectation = e
		}
	}
	t := table{
		Title: "By expectation", Words: 3, Head: []string{"network", "expected", "closest where it holds", "left", "right", "holds in"},
		Note: sides + " A place is a variant of the network with a congestion control.",
	}
	for _, g := range groups {
		if g.met == 0 {
			continue
		}
		t.Rows = append(t.Rows, []entry{
			{Text: g.Network}, {Text: g.Description, Below: []string{g.Expectation.Expression}},
			{Text: title(b.network(g.Network).variant(g.Variant))}, side(g.Left), side(g.Right),
			{Text: fmt.Sprintf("%d of %s", g.met, counted(g.places, "place", "places"))},
		})
	}
	if len(t.Rows) == 0 {
		return nil, nil
	}
	return []section{{ID: "held", Title: "What was expected and is so", Tables: []table{t.grouped()}}}, nil
}

// room is how far an expectation's sides are apart, as a share of the larger.
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

func side(v *float64) entry {
	if v == nil {
		return none()
	}
	return entry{Text: digits(*v)}
}
