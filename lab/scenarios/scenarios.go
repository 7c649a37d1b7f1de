// Package scenarios carries the scenario files that come with dcol, so that
// `dcol lab run core-limited` works on any machine that has the program. The
// command line and the benchmarks import it.
package scenarios

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/detour-collective/dcol/lab/scenario"
)

//go:embed *.toml
var files embed.FS

// Names lists the scenarios that come with dcol.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic(err) // the files are part of the program
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), ".toml")
	}
	return names
}

// Source is the text of a scenario that comes with dcol.
func Source(name string) ([]byte, error) { return files.ReadFile(name + ".toml") }

// Open reads the scenario in a file or, when there is no such file, the one of
// that name that comes with dcol.
func Open(nameOrPath string) (*scenario.Scenario, error) {
	_, err := os.Stat(nameOrPath)
	if err == nil {
		return scenario.Load(nameOrPath)
	}
	data, embedded := Source(nameOrPath)
	switch {
	case embedded == nil:
		return scenario.Parse(nameOrPath+".toml", data)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no file %q and no scenario of that name; those that come with dcol: %s",
			nameOrPath, strings.Join(Names(), ", "))
	default:
		return nil, fmt.Errorf("read the scenario: %w", err)
	}
}
