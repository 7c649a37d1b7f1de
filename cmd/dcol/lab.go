package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/lab/bench"
	"github.com/detour-collective/dcol/lab/demo"
	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/scenarios"
)

func labCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Networks of namespaces: try dcol out, measure it, look round",
		Long: `Builds networks of hosts in namespaces on this machine, with links of chosen
rate, delay and loss, and runs real programs on them. Nothing of the machine's own
network is touched, and nothing is left behind. docs/lab.md tells how to describe
a network of one's own.`,
	}
	for _, builder := range []*cobra.Command{labRunCommand(), labShellCommand(), labDemoCommand(), labBenchCommand(), labChaosCommand()} {
		builder.PreRunE = needRoot
		cmd.AddCommand(builder)
	}
	cmd.AddCommand(labLoadCommand(), labCrowdCommand(), labTrafficCommand(), labListCommand())
	return cmd
}

func needRoot(*cobra.Command, []string) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab makes network namespaces, which only root may: run it with sudo")
	}
	return nil
}

func outFlag(cmd *cobra.Command, value string) *string {
	return cmd.Flags().StringP("out", "o", value, "the `folder` for results, plots and logs")
}

func verboseFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().BoolP("verbose", "v", false, "log what the lab does")
}

func labLevel(verbose bool) string {
	if verbose {
		return "debug"
	}
	return "warn"
}

func labShellCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shell SCENARIO",
		Short: "Open a scenario's network and type commands on its hosts",
		Args:  exactly(1),
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
			Out: *out, Stderr: os.Stderr, Log: newLogger(labLevel(*verbose)),
		}, os.Stdin, os.Stdout)
	}
	return cmd
}

func labDemoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job: one download, two paths, a waypoint that dies",
		Args:  exactly(0),
	}
	out := outFlag(cmd, filepath.Join("out", "demo"))
	verbose := verboseFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return demo.Run(cmd.Context(), demo.Options{
			Out: *out, Stdout: os.Stdout, Stderr: os.Stderr, Log: newLogger(labLevel(*verbose)),
		})
	}
	return cmd
}

func labBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:       "bench [NAME...]",
		Short:     "Measure how good dcol is: " + strings.Join(bench.Names(), ", "),
		ValidArgs: bench.Names(),
	}
	out := outFlag(cmd, filepath.Join("out", "bench"))
	verbose := verboseFlag(cmd)
	members := cmd.Flags().Int("members", bench.DefaultMembers, "`number` of members in the benchmark collective")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if *members < minMembers {
			return fmt.Errorf("--members %d: at least %d", *members, minMembers)
		}
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the dcol program: %w", err)
		}
		return bench.Run(cmd.Context(), names, bench.Options{
			Out: *out, Program: program, Members: *members, Stdout: os.Stdout, Stderr: os.Stderr, Log: newLogger(labLevel(*verbose)),
		})
	}
	return cmd
}

// minMembers is enough for every step of the benchmark collective.
const minMembers = 50

// labLoadCommand is what the benchmarks run on their hosts.
func labLoadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "load", Short: "One end of a benchmark's load", Hidden: true}
	var l bench.Load
	at := cmd.PersistentFlags().String("at", "", "the server's `address:port`, the first of --ports")
	cmd.PersistentFlags().IntVar(&l.Ports, "ports", 1, "how many ports the server has")
	cmd.PersistentFlags().IntVar(&l.Rate, "rate", 1, "connections per second")
	cmd.PersistentFlags().DurationVar(&l.Duration, "duration", time.Second, "how long to open connections")
	cmd.PersistentFlags().DurationVar(&l.Hold, "hold", time.Second, "how long to hold each")
	end := func(use, short string, run func(bench.Load, context.Context, io.Writer) error) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: exactly(0), RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if l.At, err = netip.ParseAddrPort(*at); err != nil {
				return fmt.Errorf("--at: %w", err)
			}
			return run(l, cmd.Context(), os.Stdout)
		}}
	}
	var asker bench.Asker
	waypoint := ""
	ask := end("ask", "Ask a waypoint for mappings, as lines of stdin say", func(l bench.Load, ctx context.Context, w io.Writer) (err error) {
		if asker.Waypoint, err = netip.ParseAddrPort(waypoint); err != nil {
			return fmt.Errorf("--waypoint: %w", err)
		}
		asker.Server, asker.Log = l.At.Addr(), newLogger("error")
		return asker.Run(ctx, os.Stdin, w)
	})
	ask.Flags().StringVar(&asker.Name, "name", "", "the waypoint's `name`")
	ask.Flags().StringVar(&waypoint, "waypoint", "", "the waypoint's `address:port`")
	cmd.AddCommand(
		ask,
		end("serve", "Answer MPTCP connections", bench.Load.Serve),
		end("drive", "Open MPTCP connections, hold them and close them", bench.Load.Drive),
	)
	return cmd
}
