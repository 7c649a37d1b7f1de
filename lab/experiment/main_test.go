package experiment

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/lab/programs"
	"github.com/detour-collective/dcol/lab/programs/programstest"
	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage() // hosts and wires start as this executable
	dir, err := os.MkdirTemp("", "dcol-experiment-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "experiment:", err)
		os.Exit(1)
	}
	built = sync.OnceValues(func() (programs.Pair, error) { return programstest.BuildIn(dir) })
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// built returns dcol's programs, built once: the test's own executable has no agent.
var built func() (programs.Pair, error)

func buildPrograms(t *testing.T) programs.Pair {
	t.Helper()
	pair, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
