// Package programs finds dcol's two programs, which the hosts of a lab run.
package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Pair has the paths of both programs, from the same build.
type Pair struct {
	DCol string // cmd/dcol: the agent, and the commands for people
	Lab  string // cmd/dcol-lab: traffic, loads, lying members
}

// Find returns the running program as Lab, and the dcol in the same folder or else in PATH.
func Find() (Pair, error) {
	self, err := os.Executable()
	if err != nil {
		return Pair{}, fmt.Errorf("find the running program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(self), "dcol")
	if path, err := exec.LookPath(beside); err == nil {
		return Pair{DCol: path, Lab: self}, nil
	}
	path, err := exec.LookPath("dcol")
	if errors.Is(err, exec.ErrNotFound) {
		return Pair{}, fmt.Errorf("there is no program dcol beside %s, nor in PATH; `make build` makes both", self)
	}
	if err != nil {
		return Pair{}, fmt.Errorf("find the program dcol: %w", err)
	}
	return Pair{DCol: path, Lab: self}, nil
}
