package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/ui"
)

func optionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "option",
		Short: "Show what this host and others ask of each other by TCP options",
		Long: `Hosts can ask each other for settings of a connection by TCP options: a user timeout, a
congestion control, an initial window, a strategy of delayed ACKs, a rate. A setting is used
only if one host asks for it and the other grants it. [options] in the agent's configuration
says what this host asks for, and what it grants.`,
	}
	socket := cmd.PersistentFlags().String("socket", config.DefaultSocket, "the agent's `socket`")
	show := func(use, short, long string, write func(io.Writer, api.Transport) error) *cobra.Command {
		sub := &cobra.Command{Use: use, Short: short, Long: long, Args: cli.Exactly(0)}
		asJSON := sub.Flags().Bool("json", false, "print JSON ("+api.TransportSchema+")")
		sub.RunE = func(cmd *cobra.Command, _ []string) error {
			t, err := dial(*socket).Transport(cmd.Context())
			if err != nil {
				return err
			}
			if *asJSON {
				return printJSON(t)
			}
			return write(os.Stdout, t)
		}
		return sub
	}
	number := 20
	last := show("show", "Show the last requests, and what became of them", `Shows the last requests: those of others with what was granted or refused and why, and those
that this host has sent.`, func(w io.Writer, t api.Transport) error {
		if number < 1 {
			return fmt.Errorf("-n must be at least 1, not %d", number)
		}
		return ui.OptionReports(w, t, number)
	})
	last.Flags().IntVarP(&number, "number", "n", number, "the `number` of requests to show")
	cmd.AddCommand(show("list", "List the options, what this host asks and what it grants", `Lists the options, what this host asks of others, what it grants to them, and the
number of requests by verdict. If SYNs with options seem to be dropped on the way to some
networks, it also lists the networks to which no options are announced for now.`, ui.OptionList), last)
	return cmd
}
