package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/bench"
	"github.com/detour-collective/dcol/lab/chaos/attack"
	"github.com/detour-collective/dcol/lab/crowd"
	"github.com/detour-collective/dcol/lab/traffic"
)

// part is a program of the lab's own that it starts on a host of a network. Its fields are its configuration.
type part interface {
	Run(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger) error
}

// parts maps the name of each part to a function that returns a new one.
var parts = map[string]func() part{
	traffic.ServerPart:       func() part { return new(traffic.Server) },
	traffic.ClientPart:       func() part { return new(traffic.Client) },
	bench.LoadServerPart:     func() part { return new(bench.LoadServer) },
	bench.LoadClientPart:     func() part { return new(bench.LoadClient) },
	bench.AskerPart:          func() part { return new(bench.Asker) },
	bench.RelayPart:          func() part { return new(bench.Relay) },
	bench.ExchangeServerPart: func() part { return new(bench.ExchangeServer) },
	bench.ExchangeClientPart: func() part { return new(bench.ExchangeClient) },
	crowd.HubPart:            func() part { return new(crowd.Hub) },
	crowd.MembersPart:        func() part { return new(crowd.Members) },
	attack.MemberPart:        func() part { return new(attack.Member) },
}

// partCommand runs one of the parts. crew.Part writes its command line.
func partCommand() *cobra.Command {
	return &cobra.Command{
		Use: "part NAME CONFIGURATION", Short: "Run a program of the lab's own, configured by JSON", Hidden: true, Args: cli.Exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			create, ok := parts[args[0]]
			if !ok {
				return fmt.Errorf("there is no part %q; there are %s", args[0], strings.Join(slices.Sorted(maps.Keys(parts)), ", "))
			}
			p := create()
			if err := json.Unmarshal([]byte(args[1]), p); err != nil {
				return fmt.Errorf("configuration of %s: %w", args[0], err)
			}
			return p.Run(cmd.Context(), os.Stdin, os.Stdout, cli.Log("warn"))
		},
	}
}
