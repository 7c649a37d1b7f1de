package scenario

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// suiteName allows folders, because the names of dcol's own suites have them.
var suiteName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,62})?$`)

// suiteChecker finds mistakes in a suite that has been decoded, and in its scenarios.
type suiteChecker struct {
	problems
	*Suite
	open func(string) (*Scenario, error)
}

func (c *suiteChecker) check() {
	s := c.Suite
	if s.Schema != SuiteSchema {
		c.report("schema", "%q is not understood; this program reads %q", s.Schema, SuiteSchema)
	}
	c.name("name", s.Name, suiteName, plainNameForm+", in one folder at most")
	c.repetitions("repetitions", s.Repetitions)
	if len(s.Parts) == 0 {
		c.report("part", "a suite needs at least one part; declare each with [[part]]")
	}
	files := map[string]string{} // the file of each scenario, by the name in the scenario
	for i := range s.Parts {
		c.part(fmt.Sprintf("part[%d]", i), &s.Parts[i], files)
	}
}

func (c *suiteChecker) part(path string, p *Part, files map[string]string) {
	c.repetitions(path+".repetitions", p.Repetitions)
	for i, congestion := range p.Congestions {
		c.name(path+".congestion_controls", congestion, plainName, congestionForm)
		if slices.Contains(p.Congestions[:i], congestion) {
			c.report(path+".congestion_controls", "%q is there twice", congestion)
		}
	}
	if p.Scenario == "" {
		c.report(path+".scenario", "is missing; it names a scenario")
		return
	}
	var err error
	if p.Of, err = c.open(p.Scenario); err != nil {
		c.report(path+".scenario", "%s", strings.ReplaceAll(err.Error(), "\n", "\n    "))
		return
	}
	if file, taken := files[p.Of.Name]; taken && file != p.Scenario {
		c.report(path+".scenario", "%q and %q both call themselves %q; the records of their runs would mix", p.Scenario, file, p.Of.Name)
	}
	files[p.Of.Name] = p.Scenario
	if len(p.Of.Procedures) == 0 {
		c.report(path+".scenario", "%q declares no [[procedure]]: there is nothing to run", p.Scenario)
		return
	}
	c.oneByOne(path+".variants", p.Variants, "variant", p.Of.VariantNames())
	c.oneByOne(path+".procedures", p.Procedures, "procedure", p.Of.ProcedureNames())
	if len(p.Procedures) == 0 && !slices.ContainsFunc(p.Of.Procedures, func(o Procedure) bool { return !o.Optional }) {
		c.report(path+".procedures", "is missing, and all procedures of %q are optional; name those to run", p.Scenario)
	}
}

func (c *suiteChecker) repetitions(path string, n int) {
	if n < 0 || n > maxRepetitions {
		c.report(path, "%d is not a number from 1 to %d", n, maxRepetitions)
	}
}

func (c *suiteChecker) oneByOne(path string, names []string, what string, declared []string) {
	for _, name := range names {
		if name != All {
			c.known(path, name, what, declared)
		}
	}
}
