package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/setup"
	"github.com/detour-collective/dcol/internal/trace/campaign"
)

// handOverCommand is for the agent's unit, which runs it as root before it starts the agent as another user.
func handOverCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "hand-over USER",
		Short:  "Give the agent's user what root wrote; the agent's unit runs this",
		Hidden: true,
		Args:   cli.Exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			to, err := user.Lookup(args[0])
			if err != nil {
				return fmt.Errorf("find the agent's user: %w", err)
			}
			uid, err := strconv.Atoi(to.Uid)
			if err != nil {
				return fmt.Errorf("the user %s has the number %q", args[0], to.Uid)
			}
			gid, err := strconv.Atoi(to.Gid)
			if err != nil {
				return fmt.Errorf("the group of the user %s has the number %q", args[0], to.Gid)
			}
			var folders []string
			for _, name := range []string{"STATE_DIRECTORY", "RUNTIME_DIRECTORY", "LOGS_DIRECTORY"} { // systemd sets them
				folders = append(folders, filepath.SplitList(os.Getenv(name))...)
			}
			return errors.Join(
				setup.HandOver(uid, gid, folders, config.DefaultPath, campaign.RefusalsFile),
				relaying.EndHung(config.DefaultRunDir, uid),
			)
		},
	}
}
