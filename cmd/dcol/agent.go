package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/agent"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/logfile"
)

// maxLog is the size of a log before it is rotated: months of an agent's messages.
const maxLog = 10 << 20

func agentCommand() *cobra.Command {
	var path, logPath string
	var check, sample bool
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run this member's agent: the one long-running process",
		Long: `Runs the agent until it is interrupted. The agent adds detours to this host's connections, and
on a waypoint it forwards for others. dcol up starts it in the background instead.`,
		Args: cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if sample {
				_, err := fmt.Print(config.Sample)
				return err
			}
			c, err := config.Load(path)
			if err != nil {
				return err
			}
			var to io.Writer = os.Stderr
			if logPath != "" && !check {
				file, err := logfile.Open(logPath, maxLog)
				if err != nil {
					return err
				}
				to = file
			}
			log, levels := cli.LeveledLog(to, c.LogLevel)
			plan, err := agent.Prepare(c, path, version, log, levels)
			if err != nil {
				return err
			}
			if check {
				fmt.Printf("%s: ok\n", path)
				return nil
			}
			return plan.Run(cmd.Context())
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", config.DefaultPath, "the configuration `file`")
	cmd.Flags().StringVar(&logPath, "log", "", "log to `FILE`, not to standard error; at 10 MiB it becomes FILE.1")
	cmd.Flags().BoolVar(&check, "check", false, "only check the configuration and the identity")
	cmd.Flags().BoolVar(&sample, "sample", false, "print a commented configuration with every key")
	return cmd
}

func downCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the agent and remove its changes from this host",
		Long: `Stops the agent, if one runs, and removes its changes from this host: the nftables tables
with all mappings, the connections it forwards, tunnels with their interfaces, rules and
routes, eBPF filters, and the agent's run-time files. Sysctls get their old values.`,
		Args: cli.Exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.LoadOrDefault(path)
			if err != nil {
				return err
			}
			if err := bringDown(cmd.Context(), c); err != nil {
				return err
			}
			fmt.Fprintln(os.Stderr, "all changes of dcol to this host's network are removed")
			return nil
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", config.DefaultPath, "the configuration `file`")
	return cmd
}
