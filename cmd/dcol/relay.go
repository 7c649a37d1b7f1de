package main

import (
	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/relay"
)

// relayCommand is for the agent, which starts it.
func relayCommand() *cobra.Command {
	var dir, level string
	cmd := &cobra.Command{
		Use:    "relay",
		Short:  "Relay converted connections; the agent starts this",
		Hidden: true,
		Args:   cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := relay.LimitRights(); err != nil {
				return err
			}
			return relay.Run(cmd.Context(), relay.Config{Dir: dir, Version: version, Log: cli.Log(level).With("process", "relay")})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", config.DefaultRunDir, "the agent's run `directory`")
	cmd.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}
