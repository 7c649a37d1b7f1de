package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/ui"
)

func ccCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cc",
		Short: "Show which congestion control this host's connections get",
		Long: `Tables [[congestion]] of the agent's configuration choose the congestion control of this
host's connections, by cgroup, server's port and network: one of the kernel's, or one of
those of dcol, which couple the subflows of an MPTCP connection (lia, olia, balia, wvegas).`,
	}
	socket := cmd.PersistentFlags().String("socket", config.DefaultSocket, "the agent's `socket`")
	list := &cobra.Command{
		Use:   "list",
		Short: "List the congestion controls, and the connections that get them",
		Long: `Lists the congestion controls that the kernel has, those of dcol included, and which
connections get which.`,
		Args: cli.Exactly(0),
	}
	asJSON := list.Flags().Bool("json", false, "print JSON ("+api.TransportSchema+")")
	list.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := api.Dial(*socket).Transport(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(t)
		}
		return ui.Congestion(os.Stdout, t)
	}
	cmd.AddCommand(list)
	return cmd
}
