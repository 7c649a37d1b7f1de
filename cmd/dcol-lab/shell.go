package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/scenarios"
)

func shellCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shell SCENARIO",
		Short: "Open a scenario's network and type commands on its hosts",
		Args:  cli.Exactly(1),
	}
	out := outFlag(cmd, "")
	verbose := verboseFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := scenarios.Open(args[0])
		if err != nil {
			return err
		}
		if *out == "" {
			*out = filepath.Join("out", "lab", s.Name)
		}
		return experiment.Shell(cmd.Context(), s, experiment.Options{
			Out: *out, Stderr: os.Stderr, Log: cli.Log(logLevel(*verbose)),
		}, os.Stdin, os.Stdout)
	}
	return cmd
}
