package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/demo"
)

func demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job: one download, two paths, a waypoint that dies",
		Args:  cli.Exactly(0),
	}
	out := outFlag(cmd, filepath.Join("out", "demo"))
	verbose := verboseFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return demo.Run(cmd.Context(), demo.Options{
			Out: *out, Stdout: os.Stdout, Stderr: os.Stderr, Log: cli.Log(logLevel(*verbose)),
		})
	}
	return cmd
}
