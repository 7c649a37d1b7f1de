package experiment

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage() // hosts and wires start as this executable
	dir, err := os.MkdirTemp("", "dcol-experiment-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "experiment:", err)
		os.Exit(1)
	}
	built = sync.OnceValues(func() (string, error) { return build(dir) })
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// built returns dcol's path, built once: the test's own executable has no agent.
var built func() (string, error)

func build(dir string) (string, error) {
	path := filepath.Join(dir, "dcol")
	cmd := exec.Command("go", "build", "-o", path, "../../cmd/dcol")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as in `make build`, which has compiled its packages
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build dcol: %w\n%s", err, out)
	}
	return path, nil
}

func buildProgram(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
