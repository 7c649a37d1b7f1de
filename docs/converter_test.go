package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile("`([a-z0-9]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")

// tests of lab/e2e are named without a package, one or several in a row.
var (
	namedE2E = regexp.MustCompile("e2e (`Test[A-Za-z0-9]+`(?:, `Test[A-Za-z0-9]+`)*)")
	e2eTest  = regexp.MustCompile("Test[A-Za-z0-9]+")
)

// The tests of lab/e2e that converter.md names are there.
func TestConverterE2ETests(t *testing.T) {
	text, err := os.ReadFile("converter.md")
	if err != nil {
		t.Fatal(err)
	}
	code := read(t, filepath.Join("..", "lab", "e2e", "*_test.go"))
	rows := namedE2E.FindAllStringSubmatch(string(text), -1)
	if len(rows) < 6 {
		t.Fatalf("converter.md names tests of lab/e2e in %d places: is it still read right?", len(rows))
	}
	for _, row := range rows {
		for _, name := range e2eTest.FindAllString(row[1], -1) {
			if !strings.Contains(code, "\nfunc "+name+"(") {
				t.Errorf("converter.md names %s of lab/e2e, which is not there", name)
			}
		}
	}
}

// read returns the text of all files.
func read(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Each clause of RFC 8803 in converter.md has a test, unless it is not done.
func TestConverterClauses(t *testing.T) {
	text, err := os.ReadFile("converter.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "## RFC 8803, clause by clause\n")
	table, _, ends := strings.Cut(table, "\n## ")
	if !found || !ends {
		t.Fatal("converter.md has no table of clauses")
	}
	clauses := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 6 || !regexp.MustCompile(`^ \d`).MatchString(cells[1]) {
			continue
		}
		clauses++
		tested := namedTest.MatchString(cells[4]) || namedE2E.MatchString(cells[4])
		if !tested && !strings.HasPrefix(cells[3], " not done") {
			t.Errorf("no test for%s:%s", cells[1], cells[2])
		}
	}
	if clauses < 40 {
		t.Errorf("converter.md has %d clauses: is it still read right?", clauses)
	}
}

// The tests that converter.md names are there.
func TestConverterTests(t *testing.T) {
	text, err := os.ReadFile("converter.md")
	if err != nil {
		t.Fatal(err)
	}
	found := namedTest.FindAllStringSubmatch(string(text), -1)
	if len(found) < 40 {
		t.Fatalf("converter.md names %d tests: is it still read right?", len(found))
	}
	for _, name := range found {
		var files []string
		for _, folder := range []string{"converter", "waypoint", "kernel", "agent", ""} {
			more, err := filepath.Glob(filepath.Join("..", "internal", folder, name[1], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, more...)
		}
		there := false
		for _, file := range files {
			code, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			there = there || strings.Contains(string(code), "\nfunc "+name[2]+"(")
		}
		if !there {
			t.Errorf("converter.md names %s of package %s, which is not there", name[2], name[1])
		}
	}
}
