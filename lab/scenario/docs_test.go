package scenario

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

func readDocs(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/lab.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// The scenario that readers are told to copy must work.
func TestDocumentedExampleParses(t *testing.T) {
	block := regexp.MustCompile("(?s)```toml\n(.*?)```").FindStringSubmatch(readDocs(t))
	if block == nil {
		t.Fatal("docs/lab.md has no scenario")
	}
	s, err := Parse("docs/lab.md", []byte(block[1]))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Procedures) == 0 || len(s.Expects) == 0 {
		t.Error("it is not a complete one")
	}
}

// Every key and every function is explained under the heading of its table.
func TestEveryKeyIsDocumented(t *testing.T) {
	sections := map[string]string{}
	for _, text := range strings.Split(readDocs(t), "\n### ")[1:] {
		heading, body, _ := strings.Cut(text, "\n")
		sections[strings.Trim(heading, "`[]")] = body
	}
	keys := tomlfile.Keys(reflect.TypeFor[Scenario]())
	for _, key := range tomlfile.Keys(reflect.TypeFor[Suite]()) {
		if !strings.Contains(key, ".") {
			key = "The suite." + key
		}
		keys = append(keys, key)
	}
	for _, key := range keys {
		table, name, nested := strings.Cut(key, ".")
		if !nested {
			table, name = "The scenario", key
		}
		if sections[name] != "" { // a table, with its own section
			continue
		}
		last := name[strings.LastIndexByte(name, '.')+1:]
		if !strings.Contains(sections[table], "`"+last+"`") {
			t.Errorf("docs/lab.md does not explain %s under %q", key, table)
		}
	}
	for _, f := range Functions() {
		if !strings.Contains(sections["expect"], "`"+f) {
			t.Errorf("docs/lab.md does not explain %s()", f)
		}
	}
}
