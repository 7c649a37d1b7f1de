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

// Disable stops the agent that systemd runs, and prevents its start at boot.
func Disable(ctx context.Context) error {
	if known := exec.CommandContext(ctx, "systemctl", "cat", unitName).Run() == nil; !known {
		return nil
	}
	return systemctl(ctx, "disable", "--now", unitName)
}

// SetAside renames the configuration and the folders of a membership, so that a new membership can begin. It returns
// the new names.
func SetAside(config, stateDir string, now time.Time) (moved []string, err error) {
	suffix := ".left-" + now.UTC().Format("20060102T150405Z")
	// The configuration goes last. Without it, the command could not be repeated after an error.
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
