package main

import (
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/converter/ask"
	"github.com/detour-collective/dcol/internal/mptcpify"
)

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run -- PROGRAM [ARGUMENT...]",
		Short: "Run a program and make its TCP sockets MPTCP",
		Long: `Runs an unmodified program, static or dynamic, and its children, and makes their TCP
sockets MPTCP sockets. The agent can then add detours to connections with servers that
speak MPTCP. Connections to other servers go through a converter if the agent uses one;
otherwise nothing changes.`,
		Example: "  dcol run -- curl -O https://example.org/file\n  dcol run -- nginx -g 'daemon off;'",
		Args: func(_ *cobra.Command, argv []string) error {
			if len(argv) == 0 {
				return notRun(errors.New("name the program to run after --"))
			}
			return nil
		},
		DisableFlagsInUseLine: true,
	}
	relay := cmd.Flags().String("relay", filepath.Join(filepath.Dir(config.DefaultSocket), ask.SocketName),
		"the `socket` of the agent's relay to converters, if the agent has one")
	cmd.RunE = func(_ *cobra.Command, argv []string) error {
		// Exec returns only on failure, because the program replaces this process.
		return notRun(mptcpify.Exec(cli.Log("warn"), *relay, argv))
	}
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return notRun(cmd.Root().FlagErrorFunc()(cmd, err)) })
	return cmd
}

// notRun gives an error an exit code different from the program's own.
func notRun(err error) error {
	if err == nil {
		return nil
	}
	return cli.Failure{Err: err, Code: mptcpify.ExitCode(err)}
}
