package scenario

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// SuiteSchema is the version of the format of suites.
const SuiteSchema = "dcol.suite/1"

// Suite is a set of experiments that are carried out together. Their runs take turns, with one record and one report.
type Suite struct {
	Schema      string `toml:"schema"`
	Name        string `toml:"name"`
	Description string `toml:"description"`
	Repetitions int    `toml:"repetitions"`
	// Out is the folder for results, unless the command line names another.
	Out   string `toml:"out"`
	Parts []Part `toml:"part"`
}

// Part is the part of a suite that runs one scenario: every procedure in every variant with every congestion
// control. Parsing sets all its fields.
type Part struct {
	Scenario    string   `toml:"scenario"`
	Variants    []string `toml:"variants"`
	Procedures  []string `toml:"procedures"`
	Congestions []string `toml:"congestion_controls"`
	Repetitions int      `toml:"repetitions"`
	// Of is the scenario itself.
	Of *Scenario
}

// Selection selects part of a scenario or a suite. An empty field selects the default of the scenario or suite.
type Selection struct {
	Variants    []string
	Procedures  []string
	Congestions []string
	Repetitions int
}

// All selects every variant, or every procedure including the optional ones.
const All = "all"

// IsSuite reports whether a file is meant to be a suite. It checks nothing else, because the parser reports errors.
func IsSuite(data []byte) bool {
	var head struct {
		Schema string `toml:"schema"`
	}
	_ = toml.NewDecoder(bytes.NewReader(data)).Decode(&head)
	return strings.HasPrefix(head.Schema, "dcol.suite/")
}

// ParseSuite reads and checks a suite. Errors use name for the file, and open finds scenarios by their names.
// The error lists every problem with its place, one per line.
func ParseSuite(name string, data []byte, open func(string) (*Scenario, error)) (*Suite, error) {
	s := &Suite{}
	found := tomlfile.Decode(name, data, s)
	if err := found.Err(); err != nil {
		return nil, err
	}
	c := suiteChecker{Suite: s, problems: problems{found.At}, open: open}
	c.check()
	if err := found.Err(); err != nil {
		return nil, err
	}
	for i := range s.Parts {
		s.Parts[i].complete(s.Repetitions)
	}
	return s, nil
}

// complete sets a part's missing fields. The part's names must be known.
func (p *Part) complete(repetitions int) {
	switch {
	case len(p.Variants) == 0:
		p.Variants = []string{Base}
	case slices.Contains(p.Variants, All):
		p.Variants = p.Of.VariantNames()
	}
	var chosen []string
	for _, o := range p.Of.Procedures {
		if slices.Contains(p.Procedures, o.Name) || slices.Contains(p.Procedures, All) || len(p.Procedures) == 0 && !o.Optional {
			chosen = append(chosen, o.Name)
		}
	}
	p.Procedures = chosen
	if len(p.Congestions) == 0 {
		p.Congestions = []string{p.Of.Congestion}
	}
	p.Repetitions = cmp.Or(p.Repetitions, cmp.Or(repetitions, p.Of.Repetitions))
}

// SuiteOf returns a suite of one part with the selected runs of a scenario. The default is all procedures
// that are not optional, on the network as declared.
func SuiteOf(s *Scenario, wanted Selection) (*Suite, error) {
	if len(s.Procedures) == 0 {
		return nil, fmt.Errorf("scenario %s declares no [[procedure]]; it is only a network for `dcol-lab shell`", s.Name)
	}
	if _, err := s.Select(wanted.Procedures); err != nil {
		return nil, err
	}
	for _, v := range wanted.Variants {
		if _, ok := s.Variant(v); !ok && v != All {
			return nil, fmt.Errorf("scenario %s has no variant %q%s", s.Name, v, tomlfile.Nearest(v, s.VariantNames()))
		}
	}
	p := Part{
		Scenario: s.Name, Of: s, Variants: unique(wanted.Variants), Procedures: wanted.Procedures,
		Congestions: unique(wanted.Congestions), Repetitions: wanted.Repetitions,
	}
	p.complete(0)
	return &Suite{Schema: SuiteSchema, Name: s.Name, Description: s.Description, Parts: []Part{p}}, nil
}

// Narrow returns the selected runs of the suite, without empty parts. A name that occurs in no part is an
// error.
func (s *Suite) Narrow(wanted Selection) (*Suite, error) {
	narrow := *s
	narrow.Parts = nil
	for _, axis := range []struct {
		what   string
		wanted []string
		has    func(Part) []string
	}{
		{"variant", wanted.Variants, func(p Part) []string { return p.Variants }},
		{"procedure", wanted.Procedures, func(p Part) []string { return p.Procedures }},
		{"congestion control", wanted.Congestions, func(p Part) []string { return p.Congestions }},
	} {
		var all []string
		for _, p := range s.Parts {
			all = append(all, axis.has(p)...)
		}
		all = unique(all)
		for _, name := range axis.wanted {
			if name != All && !slices.Contains(all, name) {
				return nil, fmt.Errorf("no part of %s has the %s %q%s", s.Name, axis.what, name, tomlfile.Nearest(name, all))
			}
		}
	}
	for _, p := range s.Parts {
		p.Variants = amid(p.Variants, wanted.Variants)
		p.Procedures = amid(p.Procedures, wanted.Procedures)
		p.Congestions = amid(p.Congestions, wanted.Congestions)
		p.Repetitions = cmp.Or(wanted.Repetitions, p.Repetitions)
		if len(p.Variants) > 0 && len(p.Procedures) > 0 && len(p.Congestions) > 0 {
			narrow.Parts = append(narrow.Parts, p)
		}
	}
	if len(narrow.Parts) == 0 {
		return nil, fmt.Errorf("no part of %s has such a procedure in such a variant with such a congestion control", s.Name)
	}
	return &narrow, nil
}

// amid returns the selected names, or all names if the selection is empty.
func amid(names, wanted []string) []string {
	if len(wanted) == 0 || slices.Contains(wanted, All) {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !slices.Contains(wanted, n) })
}

// unique returns the names without repetitions.
func unique(names []string) []string {
	var once []string
	for _, n := range names {
		if !slices.Contains(once, n) {
			once = append(once, n)
		}
	}
	return once
}
