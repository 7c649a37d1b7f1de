package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/battery"
	"github.com/detour-collective/dcol/lab/runner"
)

// runBattery runs the battery of MPTCP implementations.
func runBattery(cmd *cobra.Command, o battery.Options, asJSON bool) error {
	if o.Out == "" {
		o.Out = filepath.Join("out", "battery")
	}
	result, err := battery.Run(cmd.Context(), o)
	if err != nil && cmd.Context().Err() != nil {
		const interrupted = 130 // as of other experiments
		err = cli.Failure{Err: err, Code: interrupted}
	}
	if result == nil {
		return err
	}
	write := result.WriteText
	if asJSON {
		write = result.WriteJSON
	}
	werr := write(os.Stdout)
	fmt.Fprintf(os.Stderr, "the page is %s; the result and logs are beside it\n", filepath.Join(o.Out, battery.HTMLFile))
	if werr != nil || err != nil {
		return errors.Join(err, werr)
	}
	if !result.Met() {
		return cli.ExitCode(3)
	}
	return nil
}

// jobsOf reads --jobs.
func jobsOf(cmd *cobra.Command, jobs int) (int, error) {
	switch {
	case !cmd.Flags().Changed("jobs"):
		return runner.Automatic, nil
	case jobs < 1:
		return 0, fmt.Errorf("--jobs %d: it must be 1 or more", jobs)
	default:
		return jobs, nil
	}
}
