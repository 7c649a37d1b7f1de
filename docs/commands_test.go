package docs

import (
	"os"
	"os/exec"
	"regexp"
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
