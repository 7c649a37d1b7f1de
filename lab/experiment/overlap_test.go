package experiment

import (
	"strings"
	"testing"

	"github.com/detour-collective/dcol/lab/scenarios"
)

const diamond = `
schema = "dcol.scenario/1"
name = "diamond"
[[host]]
name = "client"
roles = ["client"]
[[host]]
name = "server"
roles = ["server"]
[[host]]
name = "w"
roles = ["waypoint"]
[[host]]
name = "near"
roles = ["router"]
[[host]]
name = "far"
roles = ["router"]
[[link]]
name = "access"
a = "client"
b = "near"
[[link]]
name = "transit"
a = "near"
b = "far"
[[link]]
name = "rack"
a = "far"
b = "server"
[[link]]
name = "in"
a = "near"
b = "w"
[[link]]
name = "out"
a = "w"
b = "far"
[[procedure]]
name = "dcol"
transport = "mptcp"
detour = "mapped"
`

// The detour avoids the one link of the direct path that can be avoided, or is warned of.
func TestOverlaps(t *testing.T) {
	expensiveOut := strings.Replace(diamond, `name = "out"`, "name = \"out\"\ncost = 100", 1)
	withoutOut := strings.Replace(diamond, "[[link]]\nname = \"out\"\na = \"w\"\nb = \"far\"\n", "", 1)
	const whole = "the detour through w runs over the whole direct path (access, transit, rack): it gains nothing"
	for _, test := range []struct{ name, text, want string }{
		{"a way of its own", diamond, ""},
		{"back by the way it came", strings.Replace(expensiveOut, `"waypoint"]`, `"waypoint", "router"]`, 1), whole},
		{"no link beyond", withoutOut, whole},
		{"no detour at all", strings.Replace(diamond, `detour = "mapped"`, "", 1), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := strings.Join(overlaps(parse(t, test.text)), "\n")
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("warns %q, want %q", got, test.want)
			}
		})
	}
}

// A detour that shares a part of the direct path which it could avoid.
func TestOverlapInPart(t *testing.T) {
	text := strings.Replace(diamond, "[[procedure]]", `[[host]]
name = "middle"
roles = ["router"]
[[link]]
name = "first"
a = "near"
b = "middle"
[[link]]
name = "aside"
a = "near"
b = "middle"
cost = 9
[[link]]
name = "second"
a = "middle"
b = "far"
[[procedure]]`, 1)
	text = strings.Replace(text, "name = \"transit\"\n", "name = \"transit\"\ncost = 50\n", 1)
	text = strings.Replace(text, "a = \"near\"\nb = \"w\"", "a = \"middle\"\nb = \"w\"", 1)
	text = strings.Replace(text, `"waypoint"]`, `"waypoint", "router"]`, 1)
	got := strings.Join(overlaps(parse(t, text)), "\n")
	if !strings.Contains(got, "through w (access, first, in, out, rack) runs over first of the direct path") {
		t.Errorf("warns %q", got)
	}
}

// What comes with dcol has no such fault.
func TestShippedScenariosDoNotOverlap(t *testing.T) {
	for _, name := range scenarios.Names() {
		s, suite, err := scenarios.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if suite != nil {
			continue // of the others
		}
		if warnings := overlaps(s); len(warnings) > 0 {
			t.Errorf("%s: %q", name, warnings)
		}
	}
}
