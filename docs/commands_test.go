package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var shBlock = regexp.MustCompile("(?s)\n```sh\n(.*?)```\n")

// The commands of a newcomer's first hour work as CONTRIBUTING.md has them.
func TestFirstHour(t *testing.T) {
	text, err := os.ReadFile("../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, block := range shBlock.FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimSpace(line)
			if needsRoot := strings.Contains(line, "./lab/e2e") || strings.Contains(line, "dcol-lab run"); needsRoot && os.Getuid() != 0 {
				t.Logf("needs root: %s", line)
				continue
			}
			// As make test has it, so that both share what they compile.
			cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(line, "go test ", "go test -race -vet=off ", 1))
			cmd.Dir = ".."
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
			ran++
		}
	}
	if ran < 3 {
		t.Errorf("only %d commands of CONTRIBUTING.md were run: are its blocks still read right?", ran)
	}
}

var (
	makeTarget = regexp.MustCompile(`(?m)^([a-z0-9%-]+):`)
	makeWord   = regexp.MustCompile("(?:`|^|&& )(?:sudo )?make ((?:[a-z0-9.-]+ ?)+)")
)

// The targets that the texts name are in the Makefile.
func TestTargetsOfTheTexts(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets = append(targets, m[1])
	}
	named := 0
	for _, pattern := range []string{"../*.md", "*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				for _, m := range makeWord.FindAllStringSubmatch(line, -1) {
					for target := range strings.FieldsSeq(m[1]) {
						target = strings.TrimRight(target, ".")
						pattern := func(known string) bool {
							return strings.HasSuffix(known, "%") && strings.HasPrefix(target, known[:len(known)-1])
						}
						if named++; !slices.Contains(targets, target) && !slices.ContainsFunc(targets, pattern) {
							t.Errorf("%s: make has no target %s", file, target)
						}
					}
				}
			}
		}
	}
	if named < 30 {
		t.Errorf("only %d targets are named: are the texts still read right?", named)
	}
}
