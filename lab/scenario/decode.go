package scenario

import (
	"fmt"
	"os"
	"reflect"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// Load reads and checks the scenario in a file.
func Load(path string) (*Scenario, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the scenario: %w", err)
	}
	return Parse(path, data)
}

// Parse reads and checks a scenario. Errors use name for the file. The error lists every problem with its
// place, one per line.
func Parse(name string, data []byte) (*Scenario, error) {
	s := &Scenario{}
	problems := tomlfile.Decode(name, data, s)
	if err := problems.Err(); err != nil {
		return nil, err
	}
	s.setDefaults()
	c := checker{Scenario: s, report: problems.At}
	c.check()
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// Keys lists every key of the format, as "link.rate"; documentation is
// checked against it.
func Keys() []string { return tomlfile.Keys(reflect.TypeFor[Scenario]()) }
