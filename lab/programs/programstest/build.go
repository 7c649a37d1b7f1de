// Package programstest builds dcol's programs for tests, whose own executables have no agent.
package programstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/detour-collective/dcol/lab/programs"
)

// Build builds both programs into a folder of the test's.
func Build(t testing.TB) programs.Pair {
	t.Helper()
	pair, err := BuildIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// BuildIn builds both programs into a folder.
func BuildIn(dir string) (programs.Pair, error) {
	const module = "github.com/detour-collective/dcol/cmd/"
	build := exec.Command("go", "build", "-o", dir+"/", module+"dcol", module+"dcol-lab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in `make build`, which has compiled their packages
	if out, err := build.CombinedOutput(); err != nil {
		return programs.Pair{}, fmt.Errorf("build dcol and dcol-lab: %w\n%s", err, out)
	}
	return programs.Pair{DCol: filepath.Join(dir, "dcol"), Lab: filepath.Join(dir, "dcol-lab")}, nil
}
