package page

import (
	"slices"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/lab/report"
	"github.com/detour-collective/dcol/lab/report/published"
)

// network is all that was measured in one scenario, in however many parts of the
// suite: what a section reads.
type network struct {
	name, description string
	paths             []string
	variants          []report.Variant
	procedures        []string // in the order of a reader's interest
	congestions       []string // the first is the one that is shown where there is room for one
	rows              []Row
	parts             []*report.Result
}

// cell is one place in a network's tables.
type cell struct{ variant, procedure, congestion string }

// order is how the 2017 evaluation lists its procedures, with those since then
// beside their kin.
func order() []string {
	return []string{
		"mptcp-1", "dcol", "dcol-in-band", "dcol-openvpn", "dcol-wireguard",
		"tcp", "tcp-detour", "tcp-openvpn", "tcp-wireguard",
	}
}

// usesDetour: the procedure has a detour beside the direct path, as dcol's have.
func usesDetour(procedure string) bool { return strings.HasPrefix(procedure, "dcol") }

func networksOf(s *report.SuiteResult, tables *published.Tables) []*network {
	var networks []*network
	for _, part := range s.Parts {
		at := slices.IndexFunc(networks, func(n *network) bool { return n.name == part.Scenario })
		if at < 0 {
			at = len(networks)
			networks = append(networks, &network{name: part.Scenario, description: part.Description})
		}
		networks[at].add(part, tables)
	}
	for _, n := range networks {
		n.sortProcedures()
	}
	return networks
}

func (n *network) add(part *report.Result, tables *published.Tables) {
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
		n.rows = append(n.rows, newRow(part, row, n.variant(row.Variant), tables))
	}
}

// sortProcedures puts the known ones into their order, those that differ from them
// in the number of paths beside them, and the others after them.
func (n *network) sortProcedures() {
	known := order()
	rank := func(name string) int {
		if i := slices.Index(known, kin(name)); i >= 0 {
			return i
		}
		return len(known)
	}
	slices.SortStableFunc(n.procedures, func(a, b string) int { return rank(a) - rank(b) })
}

// kin is a procedure's name without the number of its paths: dcol for dcol-4.
func kin(procedure string) string {
	if slices.Contains(order(), procedure) {
		return procedure
	}
	at := strings.LastIndexByte(procedure, '-')
	if at < 0 {
		return procedure
	}
	if _, err := strconv.ParseUint(procedure[at+1:], 10, 8); err != nil {
		return procedure
	}
	return procedure[:at]
}

func appendNew(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// variant is the variant of that name, with what is known about it.
func (n *network) variant(name string) report.Variant {
	for _, v := range n.variants {
		if v.Name == name {
			return v
		}
	}
	return report.Variant{Name: name}
}

// row is the row of a cell that has valid runs; ok is false if there is none.
func (n *network) row(c cell) (row Row, ok bool) {
	for _, r := range n.rows {
		if r.Variant == c.variant && r.Procedure == c.procedure && r.Congestion == c.congestion && r.N > 0 {
			return r, true
		}
	}
	return Row{}, false
}

// values are the goodputs of a cell's valid runs, in Mbit/s.
func (n *network) values(c cell) []float64 {
	for _, part := range n.parts {
		if v := part.Under(c.congestion).Goodput(c.variant, c.procedure); len(v) > 0 {
			return v
		}
	}
	return nil
}

// median is the median goodput of a cell in Mbit/s, and whether there is one.
func (n *network) median(c cell) (float64, bool) {
	row, ok := n.row(c)
	if !ok {
		return 0, false
	}
	return *row.Median, true
}

// steady is the same from the fourth second that counts on.
func (n *network) steady(c cell) (float64, bool) {
	row, ok := n.row(c)
	if !ok || row.Steady == nil {
		return 0, false
	}
	return *row.Steady, true
}

// at is the variant with these conditions on the varied link.
func (n *network) at(lossPct, delayMS float64) (report.Variant, bool) {
	want := published.Setting{Network: n.name, LossPct: lossPct, DelayMS: delayMS}
	for _, v := range n.variants {
		if got, ok := settingOf(n.name, v); ok && got == want {
			return v, true
		}
	}
	return report.Variant{}, false
}

// inPapers reports whether any of the network's cells was published in 2017.
func (n *network) inPapers() bool {
	return slices.ContainsFunc(n.rows, func(r Row) bool { return r.PublishedMean != nil })
}

// shown are the network's variants in which any run counts.
func (n *network) shown() []report.Variant {
	return slices.DeleteFunc(slices.Clone(n.variants), func(v report.Variant) bool {
		return !slices.ContainsFunc(n.rows, func(r Row) bool { return r.Variant == v.Name && r.N > 0 })
	})
}

// title says what is special about a variant.
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
