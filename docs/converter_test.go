package docs

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
		inside, err := filepath.Glob(filepath.Join("..", "internal", "converter", name[1], "*_test.go"))
		beside, err2 := filepath.Glob(filepath.Join("..", "internal", name[1], "*_test.go"))
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		there := false
		for _, file := range slices.Concat(inside, beside) {
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
