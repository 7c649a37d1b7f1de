package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/detour-collective/dcol/internal/cli"
	"github.com/detour-collective/dcol/lab/battery"
	"github.com/detour-collective/dcol/lab/experiment"
	"github.com/detour-collective/dcol/lab/report/page"
	"github.com/detour-collective/dcol/lab/scenario"
	"github.com/detour-collective/dcol/lab/scenarios"
)

// maxReps is enough for any comparison; a typo should not cost a day.
const maxReps = 60

func runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run SCENARIO|SUITE",
		Short: "Run an experiment, or a suite of several: by name, or a file",
		Long: `Runs an experiment, or a suite of several: one that comes with dcol (see dcol-lab
list), or a file of your own. Each run is saved when it ends, so after an interruption
the same command continues with the rest.

The suite battery tests implementations of MPTCP; docs/battery.md describes it. For it,
--variant names tests, and --procedure names implementations.

Exit codes:
  0    it ran, and all expectations of the scenario were met
  1    it could not be run
  3    it ran, but an expectation was not met or could not be decided
  130  it was interrupted`,
		Example: `  sudo dcol-lab run core-limited
  sudo dcol-lab run core-limited --procedure tcp,dcol --reps 3 --out /tmp/mine
  sudo dcol-lab run mine.toml --variant all`,
		Args: cli.Exactly(1),
	}
	var o experiment.Options
	cmd.Flags().StringVarP(&o.Out, "out", "o", "", "the `folder` for the report, results and logs (default: out/lab/NAME, or the folder that the suite names)")
	verbose := verboseFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print the result as JSON (dcol.lab/1; for a suite, dcol.suite-result/1)")
	cmd.Flags().IntVar(&o.Repetitions, "reps", 0, fmt.Sprintf("repetitions, in place of the file's `number`: 1 to %d", maxReps))
	cmd.Flags().StringSliceVar(&o.Variants, "variant", nil, "`names` of variants to run, or all (default: the network as declared; for a suite, all that it names)")
	cmd.Flags().StringSliceVar(&o.Procedures, "procedure", nil, "`names` of procedures to run, or all (default: those that are not optional; for a suite, all that it names)")
	cmd.Flags().StringSliceVar(&o.Congestions, "congestion", nil, "`names` of congestion controls to run with (default: the scenario's; for a suite, all that it names)")
	jobs := cmd.Flags().Int("jobs", 0, "`number` of networks at a time (default: as many as the machine can handle)")
	full := cmd.Flags().Bool("full", false, "for the battery: make transfers and changes as long as published")
	anew := cmd.Flags().Bool("anew", false, "delete all earlier runs in the folder")
	cmd.Flags().StringVar(&o.Backend, "backend", "", "how links are emulated: netem, wire, or veth, which is as fast as the kernel and shapes nothing (default: netem where the kernel has it, else wire)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("reps") && (o.Repetitions < 1 || o.Repetitions > maxReps) {
			return fmt.Errorf("--reps %d: it must be 1 to %d", o.Repetitions, maxReps)
		}
		var err error
		if o.Jobs, err = jobsOf(cmd, *jobs); err != nil {
			return err
		}
		if args[0] == battery.Name {
			return runBattery(cmd, battery.Options{
				Out: o.Out, Full: *full, Repetitions: o.Repetitions, Tests: o.Variants, Implementations: o.Procedures,
				Jobs: o.Jobs, Resume: !*anew, Stderr: os.Stderr, Log: cli.Log(logLevel(*verbose)),
			}, *asJSON)
		}
		s, suite, err := scenarios.Find(args[0])
		if err != nil {
			return err
		}
		if *full {
			return errors.New("--full is only for the battery")
		}
		if o.Out == "" {
			o.Out = outFolder(s, suite)
		}
		o.Resume, o.Stderr, o.Log = !*anew, os.Stderr, cli.Log(logLevel(*verbose))
		result, err := labRun(cmd.Context(), s, suite, o)
		defer howFar(err, *anew) // printed last
		if result == nil {
			return err
		}
		write := result.WriteText
		if *asJSON {
			write = result.WriteJSON
		}
		werr := write(os.Stdout)
		// If the experiment was cut short, the report covers what there is.
		fmt.Fprintf(os.Stderr, "the report is %s; results and logs are beside it\n", filepath.Join(o.Out, page.HTMLFile))
		if werr != nil || err != nil {
			return errors.Join(err, werr)
		}
		if !result.Met() {
			return cli.ExitCode(3)
		}
		return nil
	}
	return cmd
}

// howFar prints how many runs of an interrupted experiment are done, and how to continue it.
func howFar(err error, anew bool) {
	cut, ok := errors.AsType[*experiment.Interrupted](err)
	if !ok {
		return
	}
	again := "the same command"
	if anew {
		again += ", without --anew,"
	}
	fmt.Fprintf(os.Stderr, "%d of %d runs are done; %s goes on with the rest\n", cut.Done, cut.Of, again)
}

// outFolder returns the default folder for results.
func outFolder(s *scenario.Scenario, suite *scenario.Suite) string {
	switch {
	case s != nil:
		return filepath.Join("out", "lab", s.Name)
	case suite.Out != "":
		return suite.Out
	default:
		return filepath.Join("out", "lab", filepath.FromSlash(suite.Name))
	}
}

// labResult is the result of a scenario or a suite.
type labResult interface {
	WriteText(w io.Writer) error
	WriteJSON(w io.Writer) error
	Met() bool
}

// labRun runs the scenario or the suite, whichever is not nil. If no run completed, the result is
// nil.
func labRun(ctx context.Context, s *scenario.Scenario, suite *scenario.Suite, o experiment.Options) (labResult, error) {
	if s != nil {
		result, err := experiment.Run(ctx, s, o)
		if result == nil || len(result.Runs) == 0 {
			return nil, err
		}
		return result, err
	}
	result, err := experiment.RunSuite(ctx, suite, o)
	if result == nil || result.Fidelity.Runs+result.Fidelity.Discarded == 0 {
		return nil, err
	}
	return result, err
}

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios that come with dcol, and the suites of them",
		Args:  cli.Exactly(0),
		RunE: func(*cobra.Command, []string) error {
			fmt.Printf("%-22s %s\n", battery.Name, "battery: 15 published tests of MPTCP and more, against the kernel's path manager, mptcpd and dcol")
			for _, name := range scenarios.Names() {
				s, suite, err := scenarios.Find(name)
				if err != nil {
					return err
				}
				if suite != nil {
					fmt.Printf("%-22s suite: %s\n", name, suite.Description)
					continue
				}
				fmt.Printf("%-22s %s\n", name, s.Description)
			}
			return nil
		},
	}
}
