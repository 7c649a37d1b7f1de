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
		Long: `Makes the agent serve a page with its state, and prints the page's address. The page shows
paths as a graph, rates, connections, waypoints, history, events, members, and who used this
waypoint. On the page you can also choose waypoints, as with dcol use and dcol avoid.

The page is served on a loopback address, and loads nothing from any network. The printed
address works once, within five minutes, and begins a session of twelve hours. For another
browser, run the command again. If the browser is on another host, forward the port from
there, and open the same address: ssh -L PORT:127.0.0.1:PORT HOST.

Operators get the page, too, but it does not show them who used this waypoint.`,
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
