package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/agent/client"
	"github.com/detour-collective/dcol/internal/agent/relaying"
	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/ui"
)

func convertCommand() *cobra.Command {
	uses := []string{string(config.ConvertNever), string(config.ConvertAuto), string(config.ConvertAlways)}
	cmd := &cobra.Command{
		Use:   "convert [never|auto|always]",
		Short: "Show or change for which servers members' converters are used",
		Long: `Most servers do not speak MPTCP. A member with a converter connects to them for this host,
which reaches the converter over several paths. The converter sees what it carries; TLS
stays encrypted up to the server.

  never    no connection goes through a converter
  auto     connections to servers that are known to speak no MPTCP go through a converter
  always   all connections do, except those to servers that are known to speak MPTCP

The change applies to new connections at once, and is written to the configuration. Only
root may change it. If no agent runs, the relay that an earlier one left follows the
change, or the command fails.`,
		Example:   "  dcol convert auto",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: uses,
	}
	socket := cmd.Flags().String("socket", config.DefaultSocket, "the agent's `socket`")
	path := cmd.Flags().StringP("config", "c", config.DefaultPath, "the configuration `file`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && !slices.Contains(uses, args[0]) {
			return fmt.Errorf("%q is not one of the words: use never, auto or always", args[0])
		}
		agent := dial(*socket)
		if len(args) == 0 {
			status, err := agent.Status(cmd.Context())
			if err != nil {
				return err
			}
			if status.Client == nil {
				return errNoClient
			}
			return ui.Converting(os.Stdout, status.Client.Converting)
		}
		if err := config.SetConverterUse(*path, config.UseConverter(args[0])); err != nil {
			return err
		}
		now, err := agent.Convert(cmd.Context(), api.ConvertRequest{Use: args[0]})
		if errors.Is(err, api.ErrNoAgent) {
			return convertWithoutAgent(*path, config.UseConverter(args[0]))
		}
		if err != nil {
			return err
		}
		return ui.Converting(os.Stdout, now)
	}
	return cmd
}

// convertWithoutAgent passes the choice, which is already in the configuration, to the relay that an ended
// agent left. It fails if that relay does not follow, because the user may rely on the choice.
func convertWithoutAgent(path string, use config.UseConverter) error {
	c, err := config.Load(path)
	if err != nil {
		return err
	}
	there, err := relaying.SetMode(c.RunDir, client.Mode(use))
	if err != nil {
		return fmt.Errorf("the configuration is changed, but no agent runs, and the relay of an earlier one may go on as before (%w): end it with dcol down, as root", err)
	}
	if there {
		fmt.Fprintln(os.Stderr, "the configuration is changed; no agent runs, and the relay of an earlier one follows")
		return nil
	}
	fmt.Fprintln(os.Stderr, "the configuration is changed; no agent runs")
	return nil
}
