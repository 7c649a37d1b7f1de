package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/loglevel"
	"github.com/detour-collective/dcol/internal/ui"
)

func logLevelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log-level [LEVEL] [SUBSYSTEM=LEVEL...]",
		Short: "Show or change which messages the running agent logs",
		Long: `Sets the level of all subsystems to LEVEL, and those of single ones: debug, info, warn or
error. Without arguments, prints the levels. It holds until the agent ends; log_level in the
configuration holds for good. The relay of converted connections is a process of its own and
keeps the level with which it started.`,
		Example: `  dcol log-level session=debug
  dcol log-level info`,
		Args: cobra.ArbitraryArgs,
	}
	socket := cmd.Flags().String("socket", config.DefaultSocket, "the agent's `socket`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var r api.LogLevelRequest
		for _, arg := range args {
			name, level, single := strings.Cut(arg, "=")
			switch {
			case single && (name == "" || r.Subsystems[name] != ""):
				return fmt.Errorf("%q: name each subsystem once, as in session=debug", arg)
			case single:
				if r.Subsystems == nil {
					r.Subsystems = make(map[string]string)
				}
				r.Subsystems[name] = level
			case r.All != "":
				return fmt.Errorf("%q is one level too many: there is one for all subsystems", arg)
			default:
				r.All, level = arg, arg
			}
			if _, err := loglevel.Parse(level); err != nil {
				return err
			}
		}
		now, err := dial(*socket).LogLevel(cmd.Context(), r)
		if err != nil {
			return err
		}
		return ui.LogLevels(os.Stdout, now)
	}
	return cmd
}
