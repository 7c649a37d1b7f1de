package scenario

import (
	"github.com/detour-collective/dcol/internal/tomlfile"
)

// Parse reads and checks a scenario. Errors use name for the file. The error lists every problem with its
// place, one per line.
func Parse(name string, data []byte) (*Scenario, error) {
	s := &Scenario{}
	found := tomlfile.Decode(name, data, s)
	if err := found.Err(); err != nil {
		return nil, err
	}
	s.setDefaults()
	c := checker{Scenario: s, problems: problems{found.At}}
	c.check()
	if err := found.Err(); err != nil {
		return nil, err
	}
	return s, nil
}
