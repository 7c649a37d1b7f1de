// Command dcol-lab builds networks of namespaces on this machine and runs dcol in them: experiments,
// benchmarks, the demo, random faults. docs/lab.md describes it.
package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/testbed"
)

// version is set by the linker.
var version = "unknown"

func main() {
	testbed.Stage() // the hosts of a network are this binary under another name
	os.Exit(cli.Run(command(), nil))
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "dcol-lab",
		Short: "networks of namespaces: try dcol out, measure it, look round",
		Long: `dcol-lab builds networks of hosts in namespaces on this machine, with links of chosen
rate, delay and loss, and runs real programs on them. It does not touch the machine's own
network, and leaves nothing behind. docs/lab.md explains how to describe your own network.`,
	}
	for _, builder := range []*cobra.Command{runCommand(), shellCommand(), demoCommand(), benchCommand(), chaosCommand()} {
		builder.PreRunE = needRoot
		root.AddCommand(builder)
	}
	root.AddCommand(partCommand(), listCommand(), diversityCommand())
	cli.Prepare(root, version)
	return root
}

func needRoot(*cobra.Command, []string) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab creates network namespaces, which needs root: run it with sudo")
	}
	return nil
}

func outFlag(cmd *cobra.Command, value string) *string {
	return cmd.Flags().StringP("out", "o", value, "the `folder` for results, plots and logs")
}

func verboseFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().BoolP("verbose", "v", false, "log what the lab does")
}

func logLevel(verbose bool) string {
	if verbose {
		return "debug"
	}
	return "warn"
}
