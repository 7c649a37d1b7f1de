package scenario

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// minimalMore has what a suite can choose from.
const minimalMore = minimal + `
[[procedure]]
name = "mptcp"
transport = "mptcp"
[[procedure]]
name = "odd"
transport = "mptcp"
subflows = 1
optional = true
[[variant]]
name = "slow"
[[variant.change]]
link = "1"
rate = "1mbit"
`

// openSome finds the scenarios of these tests.
func openSome(name string) (*Scenario, error) {
	network, _, _ := strings.Cut(minimal, "[[procedure]]")
	text := map[string]string{
		"minimal":       minimalMore,
		"minimal-again": minimalMore,
		"other":         strings.Replace(minimal, `name = "minimal"`, `name = "other"`, 1),
		"network":       strings.Replace(network, `name = "minimal"`, `name = "network"`, 1),
		"optional":      strings.Replace(minimal, `name = "minimal"`, `name = "optional"`, 1) + "optional = true\n",
	}[name]
	if text == "" {
		return nil, errors.New("there is no such scenario")
	}
	return Parse(name+".toml", []byte(text))
}

const exampleSuite = `
schema = "dcol.suite/1"
name = "papers/example"
description = "made up"
repetitions = 3
out = "out/example"
[[part]]
scenario = "minimal"
[[part]]
scenario = "minimal"
variants = ["all"]
procedures = ["all"]
congestion_controls = ["reno", "bbr"]
repetitions = 2
[[part]]
scenario = "other"
procedures = ["tcp"]
`

func parseSuite(t *testing.T, text string) *Suite {
	t.Helper()
	s, err := ParseSuite("test.toml", []byte(text), openSome)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shown leaves out the scenarios themselves.
func shown(s *Suite) []Part {
	parts := make([]Part, len(s.Parts))
	for i, p := range s.Parts {
		p.Of = nil
		parts[i] = p
	}
	return parts
}

func TestSuite(t *testing.T) {
	s := parseSuite(t, exampleSuite)
	want := []Part{
		{Scenario: "minimal", Variants: []string{"base"}, Procedures: []string{"tcp", "mptcp"}, Congestions: []string{"cubic"}, Repetitions: 3},
		{Scenario: "minimal", Variants: []string{"base", "slow"}, Procedures: []string{"tcp", "mptcp", "odd"}, Congestions: []string{"reno", "bbr"}, Repetitions: 2},
		{Scenario: "other", Variants: []string{"base"}, Procedures: []string{"tcp"}, Congestions: []string{"cubic"}, Repetitions: 3},
	}
	if diff := cmp.Diff(want, shown(s)); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	if s.Out != "out/example" || s.Parts[2].Of.Name != "other" {
		t.Errorf("out %q; the last part is of %q", s.Out, s.Parts[2].Of.Name)
	}
}

func TestNarrow(t *testing.T) {
	s := parseSuite(t, exampleSuite)
	for _, test := range []struct {
		name   string
		wanted Selection
		want   []Part // nil: an error
		says   string
	}{
		{"nothing said", Selection{}, shown(s), ""},
		{"more often", Selection{Procedures: []string{"odd"}, Repetitions: 9}, []Part{
			{Scenario: "minimal", Variants: []string{"base", "slow"}, Procedures: []string{"odd"}, Congestions: []string{"reno", "bbr"}, Repetitions: 9},
		}, ""},
		{"one network", Selection{Variants: []string{"slow"}, Congestions: []string{"bbr"}, Procedures: []string{"all"}}, []Part{
			{Scenario: "minimal", Variants: []string{"slow"}, Procedures: []string{"tcp", "mptcp", "odd"}, Congestions: []string{"bbr"}, Repetitions: 2},
		}, ""},
		{"nothing left", Selection{Variants: []string{"slow"}, Congestions: []string{"cubic"}}, nil, "such a variant with such"},
		{"unknown variant", Selection{Variants: []string{"slwo"}}, nil, `variant "slwo"; did you mean "slow"`},
		{"unknown procedure", Selection{Procedures: []string{"mptpc"}}, nil, `procedure "mptpc"; did you mean "mptcp"`},
		{"unknown congestion control", Selection{Congestions: []string{"vegas"}}, nil, `congestion control "vegas"; known here: cubic, reno, bbr`},
	} {
		got, err := s.Narrow(test.wanted)
		if test.want == nil {
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: error %v does not say %q", test.name, err, test.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if diff := cmp.Diff(test.want, shown(got), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	if diff := cmp.Diff(shown(parseSuite(t, exampleSuite)), shown(s)); diff != "" {
		t.Errorf("narrowing changed the suite itself:\n%s", diff)
	}
}

func TestSuiteOfOne(t *testing.T) {
	s, err := openSome("minimal")
	if err != nil {
		t.Fatal(err)
	}
	suite, err := SuiteOf(s, Selection{Variants: []string{"slow", "slow"}, Congestions: []string{"bbr", "reno"}})
	want := []Part{{Scenario: "minimal", Variants: []string{"slow"}, Procedures: []string{"tcp", "mptcp"}, Congestions: []string{"bbr", "reno"}, Repetitions: 10}}
	if err != nil || cmp.Diff(want, shown(suite)) != "" {
		t.Errorf("%v; (-want +got):\n%s", err, cmp.Diff(want, shown(suite)))
	}
	for says, wanted := range map[string]Selection{
		`no variant "slo"; did you mean "slow"`:  {Variants: []string{"slo"}},
		`no procedure "tpc"; did you mean "tcp"`: {Procedures: []string{"tpc"}},
	} {
		if _, err := SuiteOf(s, wanted); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v does not say %q", err, says)
		}
	}
	network, _ := openSome("network")
	if _, err := SuiteOf(network, Selection{}); err == nil || !strings.Contains(err.Error(), "only a network") {
		t.Errorf("of a network: %v", err)
	}
}

func TestIsSuite(t *testing.T) {
	for text, want := range map[string]bool{
		exampleSuite: true, minimal: false, "": false, "schema = 1": false, "schema =": false, `schema = "dcol.suite/2"`: true,
	} {
		if got := IsSuite([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// Each testdata/bad-suites/NAME.toml has its errors in NAME.txt; -update writes them.
func TestBadSuites(t *testing.T) {
	files, err := filepath.Glob("testdata/bad-suites/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, err = ParseSuite(filepath.Base(file), data, openSome)
		if err == nil {
			t.Errorf("%s was taken for a suite", file)
			continue
		}
		golden := strings.TrimSuffix(file, ".toml") + ".txt"
		if *update {
			if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, _ := os.ReadFile(golden)
		if diff := cmp.Diff(string(want), err.Error()+"\n"); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}
