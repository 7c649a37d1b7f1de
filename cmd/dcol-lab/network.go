package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/demo"
	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/scenarios"
)

func demoCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "demo", Short: "Download with and without dcol, over two paths, while a waypoint is killed", Args: cli.Exactly(0)}
	return onNetwork(cmd, filepath.Join("out", "demo"), func(ctx context.Context, _ []string, o experiment.Options) error {
		return demo.Run(ctx, o, os.Stdout)
	})
}

func shellCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "shell SCENARIO", Short: "Open a shell in a scenario's network, with its hosts", Args: cli.Exactly(1)}
	return onNetwork(cmd, "", func(ctx context.Context, args []string, o experiment.Options) error {
		s, err := scenarios.Open(args[0])
		if err != nil {
			return err
		}
		if o.Out == "" {
			o.Out = outFolder(s, nil)
		}
		return experiment.Shell(ctx, s, o, os.Stdin, os.Stdout)
	})
}

// onNetwork completes a command that does something on one network.
func onNetwork(cmd *cobra.Command, out string, run func(ctx context.Context, args []string, o experiment.Options) error) *cobra.Command {
	folder, verbose := outFlag(cmd, out), verboseFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return run(cmd.Context(), args, experiment.Options{Out: *folder, Stderr: os.Stderr, Log: cli.Log(logLevel(*verbose))})
	}
	return cmd
}
