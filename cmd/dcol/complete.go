package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/loglevel"
)

// completeWithin bounds how long the tab key waits for the agent.
const completeWithin = time.Second

// completeNames makes the shell complete names that the running agent knows. Without an agent, or for a
// user who may not ask it, nothing is completed.
func completeNames(root *cobra.Command) {
	for command, names := range map[string]func(context.Context, *api.Client) []string{
		"use": waypointNames, "avoid": waypointNames, "expel": memberNames, "why": connectionNames,
	} {
		if cmd, _, err := root.Find([]string{command}); err == nil {
			cmd.ValidArgsFunction = completeFrom(names, cmd.Name() == "use" || cmd.Name() == "avoid")
		}
	}
	if cmd, _, err := root.Find([]string{"log-level"}); err == nil {
		cmd.ValidArgsFunction = completeLevels
	}
	for _, f := range []struct {
		command []string
		flag    string
		names   func(context.Context, *api.Client) []string
	}{
		{[]string{"map"}, "via", waypointNames}, {[]string{"trace", "campaign"}, "via", memberNames}, {[]string{"log", "show"}, "member", everyName},
	} {
		if cmd, _, err := root.Find(f.command); err == nil {
			_ = cmd.RegisterFlagCompletionFunc(f.flag, completeFrom(f.names, true)) // the flag exists
		}
	}
}

// socketOf returns the socket that a command asks: that of its flag, or of the configuration that it reads.
func socketOf(cmd *cobra.Command) string {
	if socket, err := cmd.Flags().GetString("socket"); err == nil {
		return cmp.Or(socket, config.DefaultSocket)
	}
	if path, err := cmd.Flags().GetString("config"); err == nil {
		if c, err := config.Load(path); err == nil {
			return c.Socket()
		}
	}
	return config.DefaultSocket
}

// completeFrom returns a completion by names that have not been typed yet, for one argument or for several.
func completeFrom(names func(context.Context, *api.Client) []string, several bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		// The root command has no context while the shell asks for completions.
		ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completeWithin)
		defer cancel()
		list := names(ctx, api.Dial(socketOf(cmd)))
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

// memberNames returns the other members.
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

// everyName returns the names of all members, including this host's own.
func everyName(ctx context.Context, agent *api.Client) (names []string) {
	if members, err := agent.Members(ctx); err == nil {
		for _, m := range members.Members {
			names = append(names, m.Name)
		}
	}
	return names
}

// completeLevels completes a level, or the name of a subsystem and then its level.
func completeLevels(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	levels := slices.Clone(loglevel.Words)
	if name, _, single := strings.Cut(typed, "="); single {
		for i, level := range levels {
			levels[i] = name + "=" + level
		}
		return levels, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completeWithin)
	defer cancel()
	now, err := api.Dial(socketOf(cmd)).LogLevel(ctx, api.LogLevelRequest{})
	if err != nil {
		return levels, cobra.ShellCompDirectiveNoFileComp
	}
	for _, name := range slices.Sorted(maps.Keys(now.Subsystems)) {
		levels = append(levels, name+"=")
	}
	return levels, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// connectionNames returns the servers of this host's connections, and the connections' tokens, which shells show with the
// server.
func connectionNames(ctx context.Context, agent *api.Client) (names []string) {
	status, err := agent.Status(ctx)
	if err != nil || status.Client == nil {
		return nil
	}
	for _, c := range status.Client.Connections {
		names = append(names, c.Remote.String())
		if tokenForm.MatchString(c.Token) {
			names = append(names, c.Token+"\tto "+c.Remote.String())
		}
	}
	return names
}
