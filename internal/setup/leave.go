package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Disable stops the agent that systemd runs, and has it started at no boot.
func Disable(ctx context.Context) error {
	if known := exec.CommandContext(ctx, "systemctl", "cat", unitName).Run() == nil; !known {
		return nil
	}
	return systemctl(ctx, "disable", "--now", unitName)
}

// SetAside renames the configuration and the folders of a membership, so that another can begin. It returns their new
// names.
func SetAside(config, stateDir string, now time.Time) (moved []string, err error) {
	suffix := ".left-" + now.UTC().Format("20060102T150405Z")
	// The configuration goes last: without it, nothing would be left to repeat.
	for _, name := range []string{
		filepath.Join(stateDir, "identity"), filepath.Join(stateDir, "collective"), filepath.Join(stateDir, "coordinator"), config,
	} {
		err := os.Rename(name, name+suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return moved, fmt.Errorf("set the membership aside: %w", err)
		}
		moved = append(moved, name+suffix)
	}
	return moved, nil
}
