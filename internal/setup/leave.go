package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/membership"
)

// Disable stops the agent that systemd runs, and prevents its start at boot.
func Disable(ctx context.Context) error {
	if known := exec.CommandContext(ctx, "systemctl", "cat", unitName).Run() == nil; !known {
		return nil
	}
	return systemctl(ctx, "disable", "--now", unitName)
}

// TellLeaving tells a coordinator that this host leaves the collective. The coordinator then revokes this host's certificate,
// and members drop it from their lists. A second call does no harm.
func TellLeaving(ctx context.Context, c *config.Config, log *slog.Logger) error {
	id, err := collective.Open(collective.Files{
		Certificate: c.Identity.Certificate, Key: c.Identity.Key, CA: c.Identity.CA, CRL: c.Identity.CRL,
	}, log)
	if err != nil {
		return err
	}
	saved, err := membership.LoadEnrolment(c.CollectiveDir())
	if err != nil {
		log.Warn("only the configured coordinators are told", "err", err)
	}
	to := saved.Coordinators
	for _, text := range c.Collective.Coordinators {
		e, err := enrol.ParseEndpoint(text)
		if err != nil {
			return err
		}
		if !slices.Contains(to, e) {
			to = append(to, e)
		}
	}
	return enrol.Leave(ctx, id, to)
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
