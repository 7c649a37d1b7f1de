// Package scenarios carries the scenarios that come with dcol, and the suites that
// run several of them, so that `dcol-lab run core-limited` works on any machine that
// has the program. The command line and the benchmarks import it.
package scenarios

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/detour-collective/dcol/internal/tomlfile"
	"github.com/detour-collective/dcol/lab/scenario"
)

//go:embed *.toml */*.toml
var files embed.FS

const suffix = ".toml"

// Names lists what comes with dcol, those in folders after the others.
func Names() []string {
	var names []string
	for _, pattern := range []string{"*" + suffix, "*/*" + suffix} {
		found, err := fs.Glob(files, pattern)
		if err != nil {
			panic(err) // the patterns are ours
		}
		for _, file := range found {
			names = append(names, strings.TrimSuffix(file, suffix))
		}
	}
	return names
}

// Open reads the scenario in a file or, if there is no such file, dcol's own scenario of that name.
func Open(nameOrPath string) (*scenario.Scenario, error) {
	s, _, err := Find(nameOrPath)
	if err == nil && s == nil {
		return nil, fmt.Errorf("%s is a suite of several networks; name one: dcol-lab list", nameOrPath)
	}
	return s, err
}

// Find reads a scenario or a suite, one of the two, as Open does. A suite finds its
// scenarios in its own folder, or among those that come with dcol.
func Find(nameOrPath string) (*scenario.Scenario, *scenario.Suite, error) {
	file, data, err := read(nameOrPath)
	if err != nil {
		return nil, nil, err
	}
	if !scenario.IsSuite(data) {
		s, err := scenario.Parse(file, data)
		return s, nil, err
	}
	suite, err := scenario.ParseSuite(file, data, func(name string) (*scenario.Scenario, error) {
		beside := filepath.Join(filepath.Dir(file), name)
		if _, err := os.Stat(beside); err == nil && file == nameOrPath {
			return Open(beside)
		}
		return Open(name)
	})
	return nil, suite, err
}

// read returns a file's content and its name for errors.
func read(nameOrPath string) (file string, data []byte, err error) {
	if info, err := os.Stat(nameOrPath); err == nil && !info.IsDir() { // a folder may have a scenario's name
		data, err := os.ReadFile(nameOrPath)
		if err != nil {
			return nameOrPath, nil, fmt.Errorf("read the scenario: %w", err)
		}
		return nameOrPath, data, nil
	}
	file = nameOrPath + suffix
	data, err = files.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrInvalid):
		return file, nil, fmt.Errorf("there is no file %q and no scenario of that name%s\nthose that come with dcol: %s",
			nameOrPath, tomlfile.Suggestion(nameOrPath, Names()), strings.Join(Names(), ", "))
	case err != nil:
		return file, nil, fmt.Errorf("read the scenario: %w", err)
	}
	return file, data, nil
}
