package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
)

func webCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Show the agent's state in a browser on this host",
		Long: `Has the agent serve a page with its state, and prints the address: paths as a graph, rates,
connections, waypoints, history, events, members, and who used this waypoint. The page also
steers: use a waypoint first, or avoid it.

The page is served on a loopback address, and loads nothing from any network. The address begins
a session of twelve hours, once, within five minutes; run the command again for another
browser. If the browser is on another host, forward the address's port there, and open the
same address: ssh -L PORT:127.0.0.1:PORT HOST.

Operators get the page, too, but without who used this waypoint.`,
		Args: cli.Exactly(0),
	}
	socket := socketFlag(cmd)
	stop := cmd.Flags().Bool("stop", false, "end the page and all its sessions")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		page, err := dial(*socket).Web(cmd.Context(), api.WebRequest{Stop: *stop})
		if err != nil {
			return err
		}
		if *stop {
			fmt.Fprintln(os.Stderr, "the page is no longer served")
			return nil
		}
		_, err = fmt.Println(page.URL)
		return err
	}
	return cmd
}
