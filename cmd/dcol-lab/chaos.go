package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/chaos"
	"github.com/detour-collective/dcol/lab/chaos/plan"
	"github.com/detour-collective/dcol/lab/programs"
)

// chaosCommand searches for faults that break connections.
func chaosCommand() *cobra.Command {
	o := chaos.Options{Version: version}
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Strike worlds with random faults and check what dcol promises",
		Long: `Builds worlds side by side, each with downloads, uploads and messages beside twins
that speak plain TCP, strikes them with random sequences of faults, and checks that
nothing breaks that plain TCP keeps. Started again with the same seed it goes on.
docs/lab.md says more.

Exit codes: 0 if everything held; 3 if something did not; 1 if it could not be
carried out.`,
		Args: cli.Exactly(0),
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Faults, "faults", 200, "`number` of faults that must count")
	flags.Uint64Var(&o.Seed, "seed", 1, "the campaign's `seed`")
	flags.IntVar(&o.Worlds, "worlds", 4, "`number` of worlds side by side")
	flags.DurationVar(&o.ShrinkFor, "shrink", 5*time.Minute, "how `long` to look for a smaller plan that fails alike; 0: not at all")
	flags.BoolVar(&o.FailFast, "fail-fast", false, "begin no other sequence after one that failed")
	replay := flags.Uint64("replay", 0, "carry out the sequence of that `seed` alone")
	times := flags.Int("times", 1, "how `often` to carry it out")
	file := flags.String("plan", "", "carry out the plan in that `file` alone")
	out := outFlag(cmd, filepath.Join("out", "chaos"))
	verbose := verboseFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Faults < 1 || o.Worlds < 1 {
			return fmt.Errorf("--faults %d, --worlds %d: both must be at least 1", o.Faults, o.Worlds)
		}
		o.Out, o.Stderr, o.Log = *out, os.Stderr, cli.Log(chaosLevel(*verbose))
		if o.Programs, err = programs.Find(); err != nil {
			return err
		}
		p := plan.Generate(*replay)
		if *file != "" {
			if p, err = chaos.ReadPlan(*file); err != nil {
				return err
			}
		}
		if *replay != 0 || *file != "" {
			err = chaos.Replay(cmd.Context(), p, *times, o)
		} else {
			_, err = chaos.Run(cmd.Context(), o)
		}
		if errors.Is(err, chaos.ErrFindings) {
			fmt.Fprintln(os.Stderr, "chaos: "+err.Error())
			return cli.ExitCode(3)
		}
		return err
	}
	return cmd
}

// chaosLevel returns the log level. It hides warnings by default, because faults cause many of
// them.
func chaosLevel(verbose bool) string {
	if verbose {
		return "debug"
	}
	return "error"
}
