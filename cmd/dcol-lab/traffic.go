package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/traffic"
)

// trafficCommand generates streams and requests on the hosts of experiments.
func trafficCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "traffic", Short: "One end of an experiment's traffic", Hidden: true}
	cmd.AddCommand(trafficServer())
	for _, kind := range traffic.Kinds() {
		cmd.AddCommand(trafficClient(kind))
	}
	return cmd
}

func trafficServer() *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Do what clients ask for", Args: cli.Exactly(0)}
	port := cmd.Flags().Int("port", 0, "the TCP `port` to listen on")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return traffic.Server{Port: *port, Log: cli.Log("info")}.Run(cmd.Context())
	}
	return cmd
}

func trafficClient(kind traffic.Kind) *cobra.Command {
	cmd := &cobra.Command{Use: string(kind), Short: "Make this traffic, and print how long each turn took", Args: cli.Exactly(0)}
	c := traffic.Client{Plan: traffic.Plan{Kind: kind}}
	at := cmd.Flags().String("at", "", "the server's `address:port`")
	from := cmd.Flags().String("from", "", "the `address` to connect from")
	cmd.Flags().IntVar(&c.Plan.Size, "size", 0, "of each message or answer, in `bytes`")
	cmd.Flags().IntVar(&c.Plan.Count, "count", 0, "`number` of messages or requests")
	cmd.Flags().DurationVar(&c.Plan.Interval, "interval", time.Second, "`time` from one to the next")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if c.At, err = netip.ParseAddrPort(*at); err != nil {
			return fmt.Errorf("--at: %w", err)
		}
		if *from != "" {
			if c.From, err = netip.ParseAddr(*from); err != nil {
				return fmt.Errorf("--from: %w", err)
			}
		}
		report, err := c.Run(cmd.Context())
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	return cmd
}
