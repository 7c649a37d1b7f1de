package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile("`([a-z0-9]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")

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
		for _, folder := range []string{"converter", "waypoint", "kernel", ""} {
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
