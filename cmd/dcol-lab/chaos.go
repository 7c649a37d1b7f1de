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
		Short: "Inject random faults into test networks, and check that connections survive",
		Long: `Builds several test networks (worlds) side by side. Each has downloads, uploads and
messages, and next to each of them a twin that speaks plain TCP. The command injects
random sequences of faults, and checks invariants: for instance, no connection breaks
whose twin survives. Run it again with the same seed to continue a campaign.
docs/lab.md explains the faults and invariants.

Exit codes: 0 if all invariants held; 3 if one was violated; 1 if the campaign could
not be run.`,
		Args: cli.Exactly(0),
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Faults, "faults", 200, "`number` of faults that must count")
	flags.Uint64Var(&o.Seed, "seed", 1, "the campaign's `seed`")
	flags.IntVar(&o.Worlds, "worlds", 4, "`number` of worlds side by side")
	flags.DurationVar(&o.ShrinkFor, "shrink", 5*time.Minute, "the `duration` of the search for a smaller plan with the same failure; 0: do not search")
	flags.BoolVar(&o.FailFast, "fail-fast", false, "start no other sequence after one has failed")
	replay := flags.Uint64("replay", 0, "run only the sequence of this `seed`")
	times := flags.Int("times", 1, "the `number` of times to run it, side by side")
	file := flags.String("plan", "", "run only the plan in this `file`")
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
