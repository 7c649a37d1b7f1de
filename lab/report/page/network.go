package page

import (
	"fmt"
	"slices"

	"github.com/detour-collective/dcol/lab/report"
)

// network holds all measurements of one scenario, which may come from several parts of the suite.
type network struct {
	name, description string
	paths             []string
	variants          []report.Variant
	procedures        []string // in the order of a reader's interest
	congestions       []string // the first one is shown where there is room for only one
	rows              []Row
	parts             []*report.Result
}

// cell is one place in a network's tables.
type cell struct{ variant, procedure, congestion string }

func networksOf(s *report.SuiteResult, ref report.Reference) []*network {
	var networks []*network
	for _, part := range s.Parts {
		at := slices.IndexFunc(networks, func(n *network) bool { return n.name == part.Scenario })
		if at < 0 {
			at = len(networks)
			networks = append(networks, &network{name: part.Scenario, description: part.Description})
		}
		networks[at].add(part, ref)
	}
	for _, n := range networks {
		sortProcedures(n.procedures)
	}
	return networks
}

func (n *network) add(part *report.Result, ref report.Reference) {
	n.parts = append(n.parts, part)
	for _, path := range part.Paths {
		n.paths = appendNew(n.paths, path)
	}
	for _, v := range part.Variants {
		if !slices.ContainsFunc(n.variants, func(other report.Variant) bool { return other.Name == v.Name }) {
			n.variants = append(n.variants, v)
		}
	}
	for _, row := range part.Rows {
		n.procedures = appendNew(n.procedures, row.Procedure)
		n.congestions = appendNew(n.congestions, row.Congestion)
		n.rows = append(n.rows, newRow(part, row, n.variant(row.Variant), ref))
	}
}

func appendNew(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// variant returns the variant of that name.
func (n *network) variant(name string) report.Variant {
	for _, v := range n.variants {
		if v.Name == name {
			return v
		}
	}
	return report.Variant{Name: name}
}

// row returns the row of a cell. ok is false if it has no valid runs.
func (n *network) row(c cell) (row Row, ok bool) {
	for _, r := range n.rows {
		if r.Variant == c.variant && r.Procedure == c.procedure && r.Congestion == c.congestion && r.N > 0 {
			return r, true
		}
	}
	return Row{}, false
}

// values returns the goodputs of a cell's valid runs, in Mbit/s.
func (n *network) values(c cell) []float64 {
	for _, part := range n.parts {
		if v := part.Under(c.congestion).Goodput(c.variant, c.procedure); len(v) > 0 {
			return v
		}
	}
	return nil
}

// median returns the median goodput of a cell in Mbit/s. ok is false if there is none.
func (n *network) median(c cell) (float64, bool) {
	row, ok := n.row(c)
	if !ok {
		return 0, false
	}
	return *row.Median, true
}

// at returns the variant with these conditions on the varied link.
func (n *network) at(want report.Setting) (report.Variant, bool) {
	for _, v := range n.variants {
		if got, ok := settingOf(n.name, v); ok && got == want {
			return v, true
		}
	}
	return report.Variant{}, false
}

// published reports whether any of the network's cells was published.
func (n *network) published() bool {
	return slices.ContainsFunc(n.rows, func(r Row) bool { return r.PublishedMean != nil })
}

// shown returns the variants with valid runs.
func (n *network) shown() []report.Variant {
	return slices.DeleteFunc(slices.Clone(n.variants), func(v report.Variant) bool {
		return !slices.ContainsFunc(n.rows, func(r Row) bool { return r.Variant == v.Name && r.N > 0 })
	})
}

// title describes a variant.
func title(v report.Variant) string {
	switch {
	case v.Description != "":
		return v.Description
	case v.Name == baseVariant:
		return "as it is"
	default:
		return v.Name
	}
}

// baseVariant is the network as declared.
const baseVariant = "base"

// place describes where something was measured.
func place(n *network, v report.Variant, congestion string) string {
	return fmt.Sprintf("%s, %s, %s", n.name, title(v), congestion)
}
