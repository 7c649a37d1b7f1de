package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/crowd"
)

// crowdCommand generates the load of the collective benchmark on its hosts.
func crowdCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "crowd", Short: "A coordinator, or very many members", Hidden: true}
	var h crowd.Hub
	hub := &cobra.Command{Use: "hub", Short: "A coordinator that obeys its standard input", Args: cli.Exactly(0)}
	hub.Flags().StringVar(&h.Dir, "dir", "", "the `folder` for its files")
	hub.Flags().StringVar(&h.Address, "address", "", "this host's `address`")
	hub.RunE = func(cmd *cobra.Command, _ []string) error {
		h.Log = cli.Log("warn")
		return h.Run(cmd.Context(), os.Stdin, os.Stdout)
	}
	var m crowd.Members
	members := &cobra.Command{Use: "members", Short: "Members that obey their standard input", Args: cli.Exactly(0)}
	members.Flags().StringVar(&m.Dir, "dir", "", "the `folder` for their files")
	members.Flags().IntVar(&m.Most, "most", 1, "`number` of members that there will be")
	members.Flags().IntVar(&m.Sample, "sample", 1, "`number` of them that hold a copy of the directory")
	members.Flags().IntVar(&m.Parallel, "parallel", 1, "`number` of them that do something at a time")
	members.RunE = func(cmd *cobra.Command, _ []string) error { return m.Run(cmd.Context(), os.Stdin, os.Stdout) }
	cmd.AddCommand(hub, members)
	return cmd
}
