package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/mptcpify"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run -- PROGRAM [ARGUMENT...]",
		Short: "Run a program with its TCP sockets made MPTCP",
		Long: `Runs an unmodified program, static or dynamic, whose TCP sockets are MPTCP
sockets: towards servers that speak MPTCP the agent can then add detours; towards
others nothing changes. All the program's children are included.`,
		Example: "  dcol run -- curl -O https://example.org/file\n  dcol run -- nginx -g 'daemon off;'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, argv []string) error {
			// It returns only when it failed: the program takes this process's place.
			err := mptcpify.Exec(newLogger("warn"), argv)
			fmt.Fprintln(os.Stderr, "error:", err)
			return exitCode(mptcpify.ExitCode(err))
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}
