package main

import (
	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/top"
)

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show connections, waypoints and events live, on the whole screen",
		Long: `Shows connections with their subflows and rates, waypoints with their state and load,
problems, and events as they come, until q is pressed. ? lists the keys: sort, filter, freeze,
explain a connection (w), use a waypoint first (u) or avoid it (a).

It fits narrow terminals and works without colours (NO_COLOR). For output that goes to a file
or another program, use dcol status.`,
		Args: cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		first, err := dial(*socket).Status(cmd.Context())
		if err != nil {
			return err
		}
		return top.Run(cmd.Context(), api.Dial(*socket), first)
	}
	return cmd
}
