package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
)

// completeWithin bounds the wait for the agent while a user has pressed the tab key.
const completeWithin = time.Second

// completeNames has the shell complete names that the running agent knows. Without an agent, or without rights, there are
// none.
func completeNames(root *cobra.Command) {
	for command, names := range map[string]func(context.Context, *api.Client) []string{
		"use": waypointNames, "avoid": waypointNames, "expel": memberNames, "why": serverNames,
	} {
		if cmd, _, err := root.Find([]string{command}); err == nil {
			cmd.ValidArgsFunction = completeFrom(names, cmd.Name() == "use" || cmd.Name() == "avoid")
		}
	}
	if cmd, _, err := root.Find([]string{"map"}); err == nil {
		_ = cmd.RegisterFlagCompletionFunc("via", completeFrom(waypointNames, true)) // the flag exists
	}
}

// completeFrom returns a completion by names that have not been typed yet, for one argument or for several.
func completeFrom(names func(context.Context, *api.Client) []string, several bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		socket, err := cmd.Flags().GetString("socket")
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		// The root command has no context while the shell asks for completions.
		ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completeWithin)
		defer cancel()
		list := names(ctx, api.Dial(cmp.Or(socket, config.DefaultSocket)))
		slices.Sort(list)
		list = slices.DeleteFunc(slices.Compact(list), func(name string) bool { return slices.Contains(args, name) })
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// waypointNames returns the waypoints that this host uses, and those in the directory.
func waypointNames(ctx context.Context, agent *api.Client) (names []string) {
	if status, err := agent.Status(ctx); err == nil && status.Client != nil {
		for _, w := range status.Client.Waypoints {
			names = append(names, w.Name)
		}
	}
	if members, err := agent.Members(ctx); err == nil {
		for _, m := range members.Members {
			if slices.Contains(m.Roles, "waypoint") && m.Name != members.Self {
				names = append(names, m.Name)
			}
		}
	}
	return names
}

func memberNames(ctx context.Context, agent *api.Client) (names []string) {
	members, err := agent.Members(ctx)
	if err != nil {
		return nil
	}
	for _, m := range members.Members {
		if m.Name != members.Self {
			names = append(names, m.Name)
		}
	}
	return names
}

// serverNames returns the servers of this host's connections.
func serverNames(ctx context.Context, agent *api.Client) (names []string) {
	status, err := agent.Status(ctx)
	if err != nil || status.Client == nil {
		return nil
	}
	for _, c := range status.Client.Connections {
		names = append(names, c.Remote.String())
	}
	return names
}
