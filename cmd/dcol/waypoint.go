package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/ui"
)

func waypointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "waypoint",
		Short: "Show what this waypoint offers to others, or switch it off and on",
		Long: `Shows what this waypoint offers to others: whether it is open now, its hours, destinations
and bandwidth, and how much of the month's quota is used.`,
	}
	socket := cmd.PersistentFlags().String("socket", config.DefaultSocket, "the agent's `socket`")
	asJSON := cmd.Flags().Bool("json", false, "print JSON: serving.given of "+api.StatusSchema)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		status, err := dial(*socket).Status(cmd.Context())
		if err != nil {
			return err
		}
		if status.Serving == nil {
			return errors.New(`this member is not a waypoint: to make it one, add "waypoint" to roles in its configuration`)
		}
		if *asJSON {
			return printJSON(status.Serving.Given)
		}
		return ui.Given(os.Stdout, status.Serving.Given)
	}
	switchTo := func(cmd *cobra.Command, r api.SwitchRequest) error {
		given, err := dial(*socket).SwitchWaypoint(cmd.Context(), r)
		if err != nil {
			return err
		}
		return ui.Given(os.Stdout, given)
	}
	off := &cobra.Command{
		Use:   "off [--for DURATION]",
		Short: "Close the waypoint for now",
		Long: `Closes the waypoint to new connections until dcol waypoint on, or for the given time. A
restart of the agent or the host does not reopen it. Members are notified at once. Open
connections continue.`,
		Example: "  dcol waypoint off --for 2h",
		Args:    cli.Exactly(0),
	}
	length := off.Flags().Duration("for", 0, "the `duration`, such as 90m or 2h (default until dcol waypoint on)")
	off.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("for") && *length < time.Second {
			return fmt.Errorf("--for must be at least 1s, such as 90m or 2h, not %v", *length)
		}
		return switchTo(cmd, api.SwitchRequest{OffSeconds: length.Seconds()})
	}
	on := &cobra.Command{
		Use:   "on",
		Short: "Open the waypoint again, within its hours and quota",
		Args:  cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return switchTo(cmd, api.SwitchRequest{On: true})
		},
	}
	cmd.AddCommand(off, on)
	return cmd
}
