// Package docs holds the texts to the code.
package docs

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/detour-collective/dcol/"

// A room is a row of the table of packages: what a package and those below it may import of ours.
type room struct {
	name string
	may  []string // packages, with those below them; or one of the words
}

// The words that stand for packages in the table.
const (
	nothing    = "nothing"
	everything = "everything"
	product    = "everything but the lab"
	lab        = "the lab"
)

var (
	row  = regexp.MustCompile("^\\| (`[^|]+) \\| .* \\| ([^|]+) \\|$")
	name = regexp.MustCompile("`([^`]+)`")
)

// rooms reads the table of packages in architecture.md.
func rooms(t *testing.T) (table []room) {
	t.Helper()
	text, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, packages, _ := strings.Cut(string(text), "\n## Packages\n")
	packages, _, _ = strings.Cut(packages, "\n## ")
	for line := range strings.Lines(packages) {
		cells := row.FindStringSubmatch(strings.TrimSpace(line))
		if cells == nil {
			continue
		}
		for _, n := range name.FindAllStringSubmatch(cells[1], -1) {
			table = append(table, room{name: n[1], may: strings.Split(cells[2], ", ")})
		}
	}
	if len(table) < 20 {
		t.Fatalf("architecture.md has %d packages in its table: is it still read right?", len(table))
	}
	return table
}

// of returns the row for a package: the one with the longest name that is the package's or a folder's above it.
func of(table []room, pkg string) (found room, ok bool) {
	for _, r := range table {
		if within(pkg, r.name) && len(r.name) > len(found.name) {
			found, ok = r, true
		}
	}
	return found, ok
}

// within reports whether a package is in a folder, or is the folder's own.
func within(pkg, folder string) bool {
	return pkg == folder || strings.HasPrefix(pkg, folder+"/")
}

func (r room) allows(pkg string) bool {
	if within(pkg, r.name) {
		return true
	}
	return slices.ContainsFunc(r.may, func(word string) bool {
		switch word {
		case nothing:
			return false
		case everything:
			return true
		case product:
			return !within(pkg, "lab")
		case lab:
			return within(pkg, "lab")
		}
		return within(pkg, word) || within(pkg, path.Join("internal", word))
	})
}

// Packages import what the table allows, and the table allows nothing that is not used.
func TestImportLaw(t *testing.T) {
	table := rooms(t)
	list := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	list.Dir = ".."
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{} // rows, and their words
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		pkg := strings.TrimPrefix(words[0], module)
		if within(pkg, "docs") {
			continue
		}
		r, ok := of(table, pkg)
		if !ok {
			t.Errorf("%s is not in the table of packages in docs/architecture.md", pkg)
			continue
		}
		used[r.name] = true
		for _, imported := range words[1:] {
			imported, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if !r.allows(imported) {
				t.Errorf("%s imports %s; docs/architecture.md allows %s: %s", pkg, imported, r.name, strings.Join(r.may, ", "))
			}
			for _, word := range r.may {
				if within(imported, word) || within(imported, path.Join("internal", word)) {
					used[r.name+" "+word] = true
				}
			}
		}
	}
	for _, r := range table {
		if !used[r.name] {
			t.Errorf("docs/architecture.md names %s, which is no package", r.name)
			continue
		}
		for _, word := range r.may {
			if !slices.Contains([]string{nothing, everything, product, lab}, word) && !used[r.name+" "+word] {
				t.Errorf("docs/architecture.md allows %s to import %s, which it does not", r.name, word)
			}
		}
	}
}
