package scenarios

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/scenario"
)

func TestAllParse(t *testing.T) {
	for _, name := range Names() {
		s, suite, err := Find(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if suite != nil {
			if suite.Name != name || suite.Description == "" {
				t.Errorf("%s.toml is named %q inside and describes itself as %q", name, suite.Name, suite.Description)
			}
			continue
		}
		if s.Name != path.Base(name) {
			t.Errorf("%s.toml is named %q inside", name, s.Name)
		}
		if s.Description == "" || len(s.Expects) == 0 {
			t.Errorf("%s: describes itself as %q and expects %d things", name, s.Description, len(s.Expects))
		}
	}
}

// docs/lab.md has a table of the scenarios in each of these folders.
func TestFoldersAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/lab.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		if folder := path.Dir(name); folder != "beyond" && folder != "selection" {
			continue
		}
		if row := regexp.MustCompile("(?m)^\\| (`[^`]+`, )*`" + regexp.QuoteMeta(name) + "`"); !row.Match(doc) {
			t.Errorf("docs/lab.md has no row for %s", name)
		}
	}
}

// The topologies of 2017, as the thesis has them in section 5.2.
func TestTopologyOf2017(t *testing.T) {
	tests := []struct{ name, core, access string }{
		{"core-limited", "10mbit", "20mbit"},
		{"symmetric", "10mbit", "10mbit"},
	}
	for _, test := range tests {
		s, err := Open(test.name)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, shape := range s.Shapes(scenario.Variant{}) {
			ab, ba := shape.Directions()
			l := s.Links[i]
			if *ab.Rate != *ba.Rate || *ab.Delay != *ba.Delay {
				t.Errorf("%s: link %s differs by direction", test.name, l.Name)
			}
			got = append(got, strings.Join([]string{l.Name, l.A, l.B, ab.Rate.String(), ab.Delay.String()}, " "))
		}
		want := []string{
			"1 client r1 " + test.access + " 5ms",
			"2 r1 r2 " + test.core + " 5ms",
			"3 r2 server " + test.access + " 5ms",
			"4 r1 r3 " + test.core + " 5ms",
			"5 r3 r2 " + test.core + " 5ms",
			"6 r3 waypoint " + test.access + " 5ms",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for _, v := range []string{"loss-0.5", "loss-1", "loss-2", "loss-5", "delay-20", "delay-50", "delay-100"} {
			if _, ok := s.Variant(v); !ok {
				t.Errorf("%s: no variant %s", test.name, v)
			}
		}
	}
}

func TestUnknownNameListsTheKnown(t *testing.T) {
	_, err := Open("core-limitd")
	if err == nil || !strings.Contains(err.Error(), "core-limited") {
		t.Errorf("error %v does not name the scenarios there are", err)
	}
}

// Every part of a suite runs what something is expected of: else it could not fail.
func TestSuitesExpectSomething(t *testing.T) {
	for _, name := range Names() {
		_, suite, err := Find(name)
		if err != nil || suite == nil {
			continue // TestAllParse has the errors
		}
		for i, p := range suite.Parts {
			decided := 0
			for _, variant := range p.Variants {
				for _, e := range p.Of.Expects {
					if e.About(variant, p.Procedures, p.Variants) {
						decided++
					}
				}
			}
			if decided == 0 {
				t.Errorf("%s: part %d, %s: nothing is expected of what it runs", name, i+1, p.Scenario)
			}
		}
	}
}
