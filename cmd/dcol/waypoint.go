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
		Short: "Show what this member gives others as a waypoint, or switch that off and on",
		Long: `Shows what this member gives others as a waypoint: whether it gives now, within
which hours, how fast, and how much of the month's quota is used.`,
	}
	socket := cmd.PersistentFlags().String("socket", config.DefaultSocket, "the agent's `socket`")
	asJSON := cmd.Flags().Bool("json", false, "print JSON: serving.given of "+api.StatusSchema)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		status, err := api.Dial(*socket).Status(cmd.Context())
		if err != nil {
			return err
		}
		if status.Serving == nil {
			return errors.New(`this member is no waypoint: add "waypoint" to roles in its configuration`)
		}
		if *asJSON {
			return printJSON(status.Serving.Given)
		}
		return ui.Given(os.Stdout, status.Serving.Given)
	}
	switchTo := func(cmd *cobra.Command, r api.SwitchRequest) error {
		given, err := api.Dial(*socket).SwitchWaypoint(cmd.Context(), r)
		if err != nil {
			return err
		}
		return ui.Given(os.Stdout, given)
	}
	off := &cobra.Command{
		Use:   "off [--for DURATION]",
		Short: "Give nothing for now",
		Long: `Has the waypoint open no more connections for others, until it is switched on again
or the time is over, also if the agent or the host is started anew meanwhile. Members
are told at once. Connections that are open go on.`,
		Example: "  dcol waypoint off --for 2h",
		Args:    cli.Exactly(0),
	}
	length := off.Flags().Duration("for", 0, "for how `long`, such as 90m or 2h; until it is switched on if not given")
	off.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("for") && *length < time.Second {
			return fmt.Errorf("--for %v is not a time such as 90m or 2h", *length)
		}
		return switchTo(cmd, api.SwitchRequest{OffSeconds: length.Seconds()})
	}
	on := &cobra.Command{
		Use:   "on",
		Short: "Give again, within the hours and the quota of the configuration",
		Args:  cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return switchTo(cmd, api.SwitchRequest{On: true})
		},
	}
	cmd.AddCommand(off, on)
	return cmd
}
