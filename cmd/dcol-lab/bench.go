package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/bench"
	"github.com/detour-collective/dcol/lab/programs"
)

func benchCommand() *cobra.Command {
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
		pair, err := programs.Find()
		if err != nil {
			return err
		}
		return bench.Run(cmd.Context(), names, bench.Options{
			Out: *out, Programs: pair, Members: *members, Stdout: os.Stdout, Stderr: os.Stderr, Log: cli.Log(logLevel(*verbose)),
		})
	}
	return cmd
}

// minMembers is enough for every step of the benchmark collective.
const minMembers = 50

// loadCommand generates the benchmarks' load on their hosts.
func loadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "load", Short: "One end of a benchmark's load", Hidden: true}
	var l bench.Load
	at := cmd.PersistentFlags().String("at", "", "the server's `address:port`, the first of --ports")
	cmd.PersistentFlags().IntVar(&l.Ports, "ports", 1, "how many ports the server has")
	cmd.PersistentFlags().IntVar(&l.Rate, "rate", 1, "connections per second")
	cmd.PersistentFlags().DurationVar(&l.Duration, "duration", time.Second, "how long to open connections")
	cmd.PersistentFlags().DurationVar(&l.Hold, "hold", time.Second, "how long to hold each")
	end := func(use, short string, run func(bench.Load, context.Context, io.Writer) error) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: cli.Exactly(0), RunE: func(cmd *cobra.Command, _ []string) (err error) {
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
		asker.Server, asker.Log = l.At.Addr(), cli.Log("error")
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
